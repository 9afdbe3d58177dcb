#compdef shardinit
_shardinit() {
  local -a commands
  commands=(
{{commands}}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command="$words[2]"
  shift words
  (( CURRENT-- ))
  case "$command" in
{{cases}}  esac
}
_shardinit "$@"

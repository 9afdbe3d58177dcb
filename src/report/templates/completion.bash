_shardinit() {
  local word="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" words
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{{commands}}--help --version" -- "$word"))
    return
  fi
  case "${COMP_WORDS[1]}:$previous" in
{{values}}  esac
  case "${COMP_WORDS[1]}" in
{{cases}}  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}
complete -o filenames -F _shardinit shardinit

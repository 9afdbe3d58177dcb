_shardinit() {
  # bash cuts words at `=` and `:`; these are whole, up to the cursor.
  local rest="${COMP_LINE:0:COMP_POINT}" words=() part n=-1
  for part in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    case "$rest" in [[:space:]]*) n=$((n + 1)) ;; *) [ "$n" -ge 0 ] || n=0 ;; esac
    rest="${rest#"${rest%%[![:space:]]*}"}"
    part="${rest:0:${#part}}"
    rest="${rest:${#part}}"
    words[n]="${words[n]}${part//[\"\'\\]/}"
  done
  local word="${words[n]}" cut= line files=
  # bash has `cut` already, and replaces what is behind it.
  case "$2" in *[=:]*) ;; *) cut="${word%"${word##*[=:]}"}" ;; esac
  COMPREPLY=()
  while IFS= read -r line; do
    if [ "$line" = :files ]; then
      files=1
    else
      line="${line%%$'\t'*}"
      COMPREPLY+=("${line#"$cut"}")
    fi
  done < <("$1" __complete "${words[@]:1}" 2>/dev/null)
  case "${#COMPREPLY[@]}:$files:${COMPREPLY[0]}" in 1::*[=.,]) compopt -o nospace ;; esac
  if [ -n "$files" ]; then
    compopt -o filenames
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "${word#"$cut"}")
  fi
}
complete -o nosort -F _shardinit shardinit

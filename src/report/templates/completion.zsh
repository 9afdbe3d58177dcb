#compdef shardinit
_shardinit() {
  local line text about
  local -a whole open
  local -i files=0
  for line in ${(f)"$(${~words[1]} __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)"}; do
    text=${line%%$'\t'*} about=${line#*$'\t'}
    case $text in
      :files) files=1 ;;
      *[=.,]) open+=("${text//:/\\:}${about:+:$about}") ;;
      *) whole+=("${text//:/\\:}${about:+:$about}") ;;
    esac
  done
  (( $#open )) && _describe -V '' open -S ''
  (( $#whole )) && _describe -V '' whole
  if (( files )); then
    compset -P '--*='
    _files
  fi
}
# In a folder of `fpath` this file is the function; elsewhere it is evaluated.
if [ "$funcstack[1]" = _shardinit ]; then _shardinit "$@"; else compdef _shardinit shardinit; fi

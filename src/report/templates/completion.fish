function __shardinit_complete
  set -l words (commandline -opc)
  set -l word (commandline -ct | string replace -r '^["\']' '')
  for line in (command $words[1] __complete $words[2..] "$word" 2>/dev/null)
    if test "$line" != :files
      echo $line
      continue
    end
    set -l option (string match -r '^--[^=]*=' -- $word)
    for file in (__fish_complete_path (string replace -- "$option" '' $word))
      echo "$option$file"
    end
  end
end
complete -c shardinit -f -k -a '(__shardinit_complete)'

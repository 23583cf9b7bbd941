# Completion for bash: what `recvpool --help` and `recvpool SUBCOMMAND --help` list, so it is never out of date.

# What can stand behind an option: the words of the list "a | b | c" in its line; those in capitals stand for others.
_recvpool_values() { # COMMAND SUBCOMMAND OPTION BEHIND-IT
  "$1" "$2" --help 2>/dev/null | sed -nE "s/^  $3[$4]/ /p" |
    grep -oE '[A-Za-z0-9_]+( \| [A-Za-z0-9_]+)+' | head -n 1 | tr -d '|' | tr -s ' ' '\n' | grep -v '^[A-Z]*$'
}

_recvpool() {
  local command=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} listed i
  local behind=" " # an option whose value may be left out takes it only behind "="
  for ((i = 2; i < COMP_CWORD; i++)); do
    [[ ${COMP_WORDS[i]} != -- ]] || return 0 # behind it stands a command of its own
  done
  if [[ $word == "=" ]]; then # bash takes --option=value for three words
    word= behind+="["
  elif [[ $option == "=" ]]; then
    option=${COMP_WORDS[COMP_CWORD - 2]} behind+="["
  fi
  if ((COMP_CWORD == 1)); then
    listed="$("$command" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  *[a-z].*/\1/p') --help --version"
  elif [[ $word == -* ]]; then
    listed=$("$command" "${COMP_WORDS[1]}" --help 2>/dev/null | sed -n 's/^  \(--[a-z][a-z-]*\).*/\1/p')
  elif [[ $option =~ ^--[a-z-]+$ ]]; then
    listed=$(_recvpool_values "$command" "${COMP_WORDS[1]}" "$option" "$behind")
  fi
  [[ -z $listed ]] || mapfile -t COMPREPLY < <(compgen -W "$listed" -- "$word") # else files and folders
}
complete -o bashdefault -o default -F _recvpool recvpool

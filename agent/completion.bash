# Completion for bash: what `recvpool --help` and `recvpool SUBCOMMAND --help` list, so it is never out of date.
_recvpool() {
  local command=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} listed i
  if ((COMP_CWORD == 1)); then
    listed="$("$command" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\)  *[a-z].*/\1/p') --help --version"
  elif [[ $word == -* ]]; then
    for ((i = 2; i < COMP_CWORD; i++)); do
      [[ ${COMP_WORDS[i]} != -- ]] || return 0 # behind it stands a command of its own
    done
    listed=$("$command" "${COMP_WORDS[1]}" --help 2>/dev/null | sed -n 's/^  \(--[a-z][a-z-]*\).*/\1/p')
  else
    return 0 # files and folders
  fi
  mapfile -t COMPREPLY < <(compgen -W "$listed" -- "$word")
}
complete -o bashdefault -o default -F _recvpool recvpool

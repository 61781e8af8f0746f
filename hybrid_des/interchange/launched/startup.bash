# Read by bash before a script that runs with stand-ins: keeps them in front of PATH, whatever the script puts there, runs
# them for programs that are called by their path, and passes over files, folders and programs that are not on this
# machine.

__hybrid_des_step() { # before each command: whether to skip it
    local given=("$@") words=$BASH_COMMAND rest=$BASH_COMMAND variables=() first
    shopt -s extdebug # in which the trap can skip; before a script begins, it would start a debugger
    __hybrid_des_skips=
    [[ $PATH == "$__hybrid_des_tools/bin":* ]] || PATH=$__hybrid_des_tools/bin:$PATH
    while [[ $rest == *[[:space:]]* && ${rest%%[[:space:]]*} == [A-Za-z_]*([A-Za-z0-9_])=* ]]; do
        rest=${rest#*[[:space:]]} # behind A=1 B=2
    done
    first=${rest%%[[:space:]]*}
    case ${words%"$rest"}$first in
        source | .)
            eval "set -- $words" 2> /dev/null || return 0
            [[ $# -lt 2 || -e $2 ]] && return 0
            [[ $2 != */* ]] && type -P -- "$2" > /dev/null && return 0
            "$__hybrid_des_tools/bin/source" "$2"
            __hybrid_des_skips=yes
            ;;
        *[\(\`\<\>]*) ;;
        *[/\$]*)
            [[ $first != *=* ]] && eval "set -- $first" 2> /dev/null || return 0
            [[ ${1-} == */* && $1 != "$__hybrid_des_tools"/* && -x $__hybrid_des_tools/bin/${1##*/} ]] || return 0
            set -- ${given[@]+"${given[@]}"}
            eval "set -- $words" 2> /dev/null || return 0
            while [[ $1 == [A-Za-z_]*([A-Za-z0-9_])=* ]]; do
                variables+=("$1")
                shift
            done
            env ${variables[@]+"${variables[@]}"} "$__hybrid_des_tools/bin/${1##*/}" "${@:2}"
            __hybrid_des_skips=yes
            ;;
    esac
    return 0
}

cd() {
    builtin cd "$@" 2> /dev/null || "$__hybrid_des_tools/bin/cd" "$@"
}

command_not_found_handle() {
    "$__hybrid_des_tools/bin/absent" "$@"
}

enable -n kill
set -T
trap '__hybrid_des_step "$@"; ! [[ $__hybrid_des_skips ]]' DEBUG # `!`, or `set -e` would end the script

# Read by bash before a script that runs with stand-ins: keeps them in front of PATH, whatever the script puts there, runs
# them for programs that are called by their path, and passes over files, folders and programs that are not on this
# machine.

__hybrid_des_step() { # before each command: whether to skip it
    local given=("$@") words=$BASH_COMMAND first=${BASH_COMMAND%%[[:space:]]*}
    shopt -s extdebug # in which the trap can skip; before a script begins, it would start a debugger
    __hybrid_des_skips=
    [[ $PATH == "$__hybrid_des_tools/bin":* ]] || PATH=$__hybrid_des_tools/bin:$PATH
    case $first in
        source | .)
            eval "set -- $words" 2> /dev/null || return 0
            [[ $# -lt 2 || -e $2 ]] && return 0
            [[ $2 != */* ]] && type -P -- "$2" > /dev/null && return 0
            "$__hybrid_des_tools/bin/source" "$2"
            __hybrid_des_skips=yes
            ;;
        *[\(\`\<\>=]*) ;;
        *[/\$]*)
            eval "set -- $first" 2> /dev/null || return 0
            [[ ${1-} == */* && $1 != "$__hybrid_des_tools"/* && -x $__hybrid_des_tools/bin/${1##*/} ]] || return 0
            set -- "${given[@]}"
            eval "set -- $words" 2> /dev/null || return 0
            "$__hybrid_des_tools/bin/${1##*/}" "${@:2}"
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

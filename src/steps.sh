# Shell functions that src/install.sh and tests/run.sh share; sourced at the
# repository's root, by a POSIX shell.

# Runs the rest of its arguments as one named step: says its name and how long
# it took, keeps its output in build/log/NAME.log, and shows it all on failure.
Step() {
  step_name=$1; shift
  mkdir -p build/log
  step_log=build/log/$(printf %s "$step_name" | tr -c 'A-Za-z0-9.-' _).log
  step_start=$(date +%s)
  printf '%s … ' "$step_name"
  if "$@" >"$step_log" 2>&1; then
    echo "done ($(($(date +%s) - step_start)) s)"
  else
    step_status=$?
    echo "FAILED (status $step_status)"
    cat "$step_log" >&2
    echo "$(basename "$0"): \`$step_name\` failed; the log above is $PWD/$step_log" >&2
    exit 1
  fi
}

# As root, or through sudo.
AsRoot() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null 2>&1; then
    sudo "$@"
  else
    echo "this needs root, and there is no sudo: $*" >&2
    return 1
  fi
}

# Prints those of its arguments that are Debian packages not installed here.
MissingPackages() {
  for package in "$@"; do
    case " $(dpkg-query -W -f '${db:Status-Status} ' "$package" 2>/dev/null)" in
      *' installed '*) ;;
      *) echo "$package" ;;
    esac
  done
}

# Installs the named Debian packages that are missing; does nothing, and uses no
# network, when there are none.
InstallPackages() {
  if ! command -v dpkg-query >/dev/null 2>&1; then
    echo "note: not a Debian system; these must be there already: $*"
    return
  fi
  missing=$(MissingPackages "$@" | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  echo "missing packages: $missing"
  Step 'update package lists' AsRoot apt-get update
  Step 'install packages' AsRoot env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends $missing
}

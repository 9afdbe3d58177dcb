# Shell functions that src/install.sh and tests/run.sh share; sourced at the
# repository's root, by a POSIX shell.

# Runs the rest of its arguments as one named step: says its name and how long
# it took, keeps its output in build/log/NAME.log, and shows it all on failure,
# with $step_hint if there is one: what the user can do.
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
    [ -z "${step_hint:-}" ] || echo "  hint: $step_hint" >&2
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

# Sets `apt` to an apt-get with a state of its own in FOLDER, for packages and sources of another kind
# of machine, of which this machine's dpkg knows nothing: many could not stand beside its own.
DebianApt() {
  mkdir -p "$1/lists/partial" "$1/archives/partial" "$1/sources" || return
  : > "$1/status"
  for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    case $list in
      *.sources) sed 's/^Types: deb$/Types: deb deb-src/' "$list" > "$1/sources/${list##*/}" ;;
      *.list) sed -n 'p; s/^deb /deb-src /p' "$list" > "$1/sources/${list##*/}" ;;
    esac
  done
  apt="apt-get -o APT::Architecture=$2 -o APT::Architectures::=$2
    -o Dir::State=$1 -o Dir::State::status=$1/status -o Dir::Etc::SourceList=/dev/null
    -o Dir::Etc::SourceParts=$1/sources -o Dir::Cache=$1 -o Debug::NoLocking=1 -o APT::Sandbox::User=root"
  $apt update
}

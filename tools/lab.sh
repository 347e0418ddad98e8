#!/bin/sh
# Put what the tests need on this machine: two software Vulkan GPUs of different vendors, sshd, an MQTT broker, PostgreSQL, a browser.
# As root on Debian or Ubuntu the packages come through apt, announced first; elsewhere it says what is missing and the
# tests that need it skip by name. It leaves no service running and the package sources as they were.
# Found by tests/lab/gpus.py and the tests' own look-ups. Exit 0 in every case: a missing part is a skip, not an error.
set -eu
cd "$(dirname "$0")/.."
lab=$(pwd -P)/.lab

say() { printf '%s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ]; }
# Mesa older than 23 is refused by LiteRT's WebGPU accelerator (no dynamic indexing of storage images in llvmpipe).
mesa_min=23

has_llvmpipe() {
    [ -z "${FARM_LAB_LVP_ICD:-}" ] || return 0
    set -- /usr/share/vulkan/icd.d/lvp_icd*.json
    [ -f "$1" ] || return 1
    ! have dpkg-query || mesa_is_new "$(dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null || true)"
}
mesa_is_new() { [ -n "$1" ] && dpkg --compare-versions "$1" ge "$mesa_min"; }
has_swiftshader() {
    [ -n "${FARM_LAB_SWIFTSHADER_ICD:-}" ] || [ -f "$lab/swiftshader/vk_swiftshader_icd.json" ] ||
        [ -f /usr/lib/chromium/vk_swiftshader_icd.json ] || [ -f /usr/lib/chromium-browser/vk_swiftshader_icd.json ]
}
has_loader() { ldconfig -p 2>/dev/null | grep -q 'libvulkan\.so\.1' || /sbin/ldconfig -p 2>/dev/null | grep -q 'libvulkan\.so\.1'; }
has_chromium() { have chromium || have chromium-browser || have google-chrome; }
has_postgres() { have initdb || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; }

missing() {
    has_loader || printf 'libvulkan1 '
    has_llvmpipe || printf 'mesa-vulkan-drivers '
    have sshd || printf 'openssh-server '
    have mosquitto || printf 'mosquitto '
    has_chromium || printf 'chromium '
    have openssl || printf 'openssl '
    has_postgres || printf 'postgresql '
}

if [ "$(uname -s)" != Linux ]; then
    say "lab: software GPUs come from Linux packages; the tests that need one are skipped by name here."
    exit 0
fi
want=$(missing)
if [ -z "$want" ] && has_swiftshader; then exit 0; fi

if ! have apt-get; then
    say "lab: missing ${want}and SwiftShader, and this system has no apt; the tests that need them are skipped by name."
    exit 0
fi

# Private package lists: an extra suite is used for one command without touching /etc/apt.
private_apt() {
    command=$1
    shift
    apt-get -q -o Dir::Etc::SourceParts="$lab/apt/sources" -o Dir::State::Lists="$lab/apt/lists" \
        -o APT::Sandbox::User=root -o DPkg::Lock::Timeout=300 "$command" "$@"
}
prepare_backports() {
    # The suite's address is the one this machine already uses for its release, whatever mirror that is.
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    [ "$codename" = bookworm ] || return 1
    uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $codename" 2>/dev/null | sed -n 1p)
    [ -n "$uri" ] || return 1
    mkdir -p "$lab/apt/sources" "$lab/apt/lists/partial"
    cp /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources "$lab/apt/sources/" 2>/dev/null || true
    printf 'Types: deb\nURIs: %s\nSuites: %s-backports\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
        "$uri" "$codename" >"$lab/apt/sources/farm-lab-backports.sources"
    # The same suite listed twice with different options is refused by apt; keep the machine's own entry then.
    if grep -qs "$codename-backports" /etc/apt/sources.list /etc/apt/sources.list.d/*; then
        rm -f "$lab/apt/sources/farm-lab-backports.sources"
    fi
    private_apt update >/dev/null
}

if [ -n "$want" ] && [ "$(id -u)" != 0 ]; then
    say "lab: missing ${want}— the tests that need them are skipped by name; to have them: sudo tools/lab.sh"
elif [ -n "$want" ]; then
    say "lab: installing with apt for the tests: ${want}(services stay stopped and disabled; package sources stay as they are) ..."
    export DEBIAN_FRONTEND=noninteractive
    # Debian's own switch against starting daemons on installation; removed again, and left alone where there is one.
    policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        trap 'rm -f "$policy"' EXIT
        trap 'exit 130' INT
        trap 'exit 143' TERM
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
    fi
    apt-get -q update >/dev/null || say "lab: apt-get update failed; trying with the lists that are here."
    for package in $want; do
        from=
        if [ "$package" = mesa-vulkan-drivers ]; then
            candidate=$(apt-cache policy mesa-vulkan-drivers | awk '/Candidate:/ { print $2 }')
            if ! mesa_is_new "$candidate"; then
                if prepare_backports; then from=backports; else
                    say "lab: mesa-vulkan-drivers $candidate is too old for LiteRT's GPU accelerator; llvmpipe tests are skipped by name."
                    continue
                fi
            fi
        fi
        fresh=yes
        ! dpkg -s "$package" >/dev/null 2>&1 || fresh=
        if [ "$from" = backports ]; then
            private_apt install -y --no-install-recommends -t "$codename-backports" "$package" >"$lab/apt.log" 2>&1 || fresh=failed
        else
            mkdir -p "$lab"
            apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$package" >"$lab/apt.log" 2>&1 || fresh=failed
        fi
        if [ "$fresh" = failed ]; then
            say "lab: $package could not be installed; the tests that need it are skipped by name. apt said:"
            tail -n 5 "$lab/apt.log" >&2
        elif [ "$fresh" = yes ] && have systemctl; then
            case "$package" in
            openssh-server) systemctl disable --quiet ssh.service ssh.socket 2>/dev/null || true ;;
            mosquitto) systemctl disable --quiet mosquitto.service 2>/dev/null || true ;;
            postgresql) systemctl disable --quiet postgresql.service 2>/dev/null || true ;;
            esac
        fi
    done
fi

rm -rf "$lab/apt" "$lab/apt.log"
if ! has_swiftshader; then
    # Only the library is wanted: unpacked, never installed. Works without root once the package lists are there.
    mkdir -p "$lab/swiftshader"
    say "lab: unpacking SwiftShader from the package chromium-common into .lab/ ..."
    work=$(mktemp -d)
    if (cd "$work" && apt-get -q -o APT::Sandbox::User="$(id -un)" download chromium-common >apt.log 2>&1 && dpkg -x chromium-common_*.deb unpacked) &&
        cp "$work"/unpacked/usr/lib/chromium/libvk_swiftshader.so "$work"/unpacked/usr/lib/chromium/vk_swiftshader_icd.json "$lab/swiftshader/"; then
        rm -rf "$work"
    else
        rm -rf "$work" "$lab/swiftshader"
        say "lab: SwiftShader could not be had (no package chromium-common here); the tests that need it are skipped by name."
    fi
fi
exit 0

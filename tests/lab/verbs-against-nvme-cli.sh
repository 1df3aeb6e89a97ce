# What: each verb of `nvmf` shows under nvme-cli's names what nvme-cli shows of the same target through the kernel
# Kernels: stable backports
# Seconds: 240
. "$LAB/lib.sh"

HOSTNQN=nqn.2014-08.org.nvmexpress:uuid:2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a9
HOSTID=2e0f4d6a-51c5-4c0d-9a2b-64d0c5b1f0a9

connected() {
    nvme connect -t tcp -a "$GUEST" -s 4420 -n "$NQN" --hostnqn=$HOSTNQN --hostid=$HOSTID
    wait_for 50 controller_disk
}

# A host of its own: the same identity is connected twice.
ours() {
    ours_verb=$1
    shift
    nvmf "$ours_verb" -t tcp -a "$GUEST" --trsvcid 4420 -n "$NQN" --hostnqn $HOSTNQN --hostid $HOSTID "$@"
}

# `same NAMES DIFFERENT`: each field of theirs in /run/theirs.json is in /run/ours.json, and has its value, but for the
# names that are listed. Numbers may be texts on one side.
same() {
    jq -n --slurpfile theirs /run/theirs.json --slurpfile ours /run/ours.json \
        --argjson missing "$1" --argjson different "$2" '
        def flat: [paths(type != "object" and type != "array") as $p | {key: ($p | map(tostring) | join(".")), value: (getpath($p) | tostring | ascii_downcase | gsub("^ +| +$"; ""))}] | from_entries;
        ($theirs[0] | flat) as $t | ($ours[0] | flat) as $o
        | { missing: [$t | keys[] | select($o[.] == null)] , different: [$t | keys[] | select($o[.] != null and $o[.] != $t[.]) | {(.): [$t[.], $o[.]]}] }
        | .missing |= map(select(. as $name | ($missing | any(. as $re | $name | test("^(" + $re + ")$"))) | not))
        | .different |= map(select((keys[0]) as $name | ($different | any(. as $re | $name | test("^(" + $re + ")$"))) | not))' \
        >/run/difference.json
    jq -e '.missing == [] and .different == []' /run/difference.json >/dev/null || {
        cat /run/difference.json
        return 1
    }
}

device() { echo "/dev/$(controller)"; }

id_ctrl() {
    nvme id-ctrl "$(device)" -o json >/run/theirs.json
    ours id-ctrl -o json >/run/ours.json
    # Each has a controller of its own.
    same '[]' '["cntlid"]'
}

id_ns() {
    nvme id-ns "$(controller_disk)" -o json >/run/theirs.json
    ours id-ns -o json >/run/ours.json
    same '[]' '[]'
}

smart_log() {
    nvme smart-log "$(device)" -o json >/run/theirs.json
    ours smart-log -o json >/run/ours.json
    same '["temperature_sensor_.*", "thm_.*"]' '["data_units_.*", "host_.*_commands", "controller_busy_time", "num_err_log_entries"]'
}

ana_log() {
    nvme ana-log "$(device)" -o json >/run/theirs.json
    ours ana-log -o json >/run/ours.json
    # We have no device there, but the NQN.
    same '[]' '["Asymmetric Namespace Access Log for NVMe device"]'
}

error_log() {
    nvme error-log "$(device)" -e 4 -o json >/run/theirs.json
    ours error-log -e 4 -o json >/run/ours.json
    # Each controller has its own log: the names are what is compared.
    same '[]' '["errors.*"]'
}

reservations() {
    nvme resv-register "$(controller_disk)" -n 1 --nrkey=0xabcd --rrega=0
    nvme resv-acquire "$(controller_disk)" -n 1 --crkey=0xabcd --rtype=1 --racqa=0
    nvme resv-report "$(controller_disk)" -n 1 -e 1 -o json >/run/theirs.json
    ours resv-report --nsid 1 -o json >/run/ours.json
    same '[]' '["regctlext.*cntlid"]'
    # What one registers the other releases.
    ours resv-release --nsid 1 --crkey 0xabcd --rtype 1
    ours resv-register --nsid 1 --crkey 0xabcd --rrega 1
    nvme resv-report "$(controller_disk)" -n 1 -e 1 -o json | jq -e '.regctl == 0'
}

registers() {
    nvme show-regs "$(device)" -o json >/run/theirs.json
    ours show-regs -o json >/run/ours.json
    # Over Fabrics there are no others; nvme-cli shows them as -1, and so it does NSSR and NSSD, which controllers may
    # lack, and CRTO, which it does not read. CC is what each host has written: the kernel's enables all command sets.
    same '["intms", "intmc", "nssr", "nssd", "aqa", "asq", "acq", "cmb.*", "bp.*", "pmr.*"]' \
        '["cc", "nssr", "nssd", "crto"]'
}

features() {
    for feature in 0x06 0x07 0x0b 0x0f; do
        nvme get-feature "$(device)" -f $feature >/run/theirs
        ours get-feature --feature-id $feature >/run/ours
        # Each host has its own number of queues, and its own events.
        case $feature in
        0x07 | 0x0b) sed -i 's/value:.*/value:/' /run/theirs /run/ours ;;
        esac
        cmp -s /run/theirs /run/ours || { cat /run/theirs /run/ours; return 1; }
    done
    nvme get-feature "$(device)" -f 0x06 -o json >/run/theirs.json
    ours get-feature --feature-id 0x06 -o json >/run/ours.json
    # "Feature: 0x06" explains the value in sentences, which `nvmf` does not.
    same '["Feature: 0x06.*"]' '[]'
}

discovery() {
    nvme discover -t tcp -a "$GUEST" -s 4420 --hostnqn=$HOSTNQN --hostid=$HOSTID -o json >/run/theirs.json
    nvmf discover -t tcp -a "$GUEST" -s 4420 -q $HOSTNQN -I $HOSTID -o json >/run/ours.json
    same '["device"]' '[]'
}

# The names of their lists are in ours; the values are of other controllers.
lists() {
    nvmf attach -t tcp -a "$GUEST" -n "$NQN" --hostnqn $HOSTNQN --hostid $HOSTID --as socket --duplicate-connect
    nvme list-subsys -o json | jq '[.[] | {Subsystems: [.Subsystems[] | select(.NQN == "'"$NQN"'")]}]' >/run/theirs.json
    nvmf list-subsys -o json >/run/ours.json
    same '[]' '[".*Name", ".*IOPolicy", ".*Address"]'
    nvmf detach --all
}

# What bits mean, a line each, whatever the blanks. Capacities of 128 bits are not explained by us, nor times of power
# states that signal a loss of power.
meanings() { grep -E '^ *\[[0-9]+:[0-9]+\] ?:|^	|^      ' | sed -E 's/[ 	]+/ /g; s/^ //; s/\]:/] :/' | grep -vE '^\[127:0\]|NVM Capacity \(|power fail|forced quiescence' | sort -u; }

# Every explanation of theirs is in ours.
human() {
    {
        nvme id-ctrl "$(device)" -H
        nvme id-ns "$(controller_disk)" -H
        nvme smart-log "$(device)" -H
        nvme get-feature "$(device)" -f 0x06 -H
        nvme get-feature "$(device)" -f 0x0f -H
    } | meanings >/run/theirs
    {
        ours id-ctrl -H
        ours id-ns -H
        ours smart-log -H
        ours get-feature -f 0x06 -H
        ours get-feature -f 0x0f -H
    } | meanings >/run/ours
    [ -s /run/theirs ]
    missing=$(comm -23 /run/theirs /run/ours)
    [ -z "$missing" ] || { echo "$missing"; return 1; }
}

# But for the controller's number, in bytes 78 and 79, and what tells one from the next of that number, in 135 to 143.
binary() {
    nvme id-ctrl "$(device)" -b >/run/theirs
    ours id-ctrl -b >/run/ours
    [ -z "$(cmp -l /run/theirs /run/ours | awk '$1 != 79 && $1 != 80 && ($1 < 136 || $1 > 144)')" ]
    nvme id-ns "$(controller_disk)" -b >/run/theirs
    ours id-ns -b >/run/ours
    cmp /run/theirs /run/ours
    nvme get-log "$(device)" -i 2 -l 24 -b >/run/theirs
    ours get-log -i 2 -l 24 --lsi 0 --csi 0 -b >/run/ours
    cmp /run/theirs /run/ours
}

dry_run() {
    nvme admin-passthru "$(device)" --opcode=6 -4 1 -l 4096 -r --dry-run | grep -v ^addr >/run/theirs
    ours admin-passthru --opcode=6 -4 1 -l 4096 -r --dry-run | grep -v ^addr >/run/ours
    cmp -s /run/theirs /run/ours || { cat /run/theirs /run/ours; return 1; }
}

keys() {
    nvme gen-dhchap-key -m 1 -s "$(printf '5a%.0s' $(seq 32))" -n $HOSTNQN >/run/theirs
    nvmf check-dhchap-key -k "$(cat /run/theirs)"
    nvmf gen-dhchap-key -m 2 >/run/ours
    nvme check-dhchap-key -k "$(cat /run/ours)"
}

modprobe nvme-tcp
must 'target starts' our_target tcp
must 'the kernel is connected' connected
step 'id-ctrl' id_ctrl
step 'id-ns' id_ns
step 'smart-log' smart_log
step 'ana-log' ana_log
step 'error-log' error_log
step 'resv-register, resv-acquire, resv-report, resv-release' reservations
step 'show-regs' registers
step 'get-feature' features
step '-H' human
step '-b' binary
step '--dry-run' dry_run
step 'discover' discovery
step 'list-subsys' lists
step 'gen-dhchap-key, check-dhchap-key' keys
step 'disconnect' disconnect
finish

# What: the kernel's initiator and tlshd use our target on the host's loopback over NVMe/TCP with TLS
# Kernels: stable backports
# Cell: kernel `nvme-tcp` → ours | TCP, TLS
# Seconds: 600
. "$LAB/cell.sh"
initiator=kernel transport=tcp address=$HOST nqn=$NQN tls=--tls
port=$(host 'echo $PORT')

modprobe -a tls nvme-tcp
must 'tlshd starts' tlshd_start
# Not keys for SHA-384: tlshd's GnuTLS (3.8.9; Debian's backports have no other) makes every binder with SHA-256.
for hash in 01; do
    keyed() { echo "$(tls_key $hash)" >/run/key && chmod 600 /run/key; }
    must "key with hash $hash" keyed
    must 'target starts' host "target_start $NQN tcp $(cat /etc/nvme/hostnqn) $(tls_key $hash)"
    for version in 0 1; do
        must "keys of version $version" tls_keys_insert $version
        step discover discover
        must connect connect
        step identify identify
        step flush flush
        case $version in 1) step 'fio verified' verify ;; esac
        step disconnect disconnect
        step 'keys away' tls_keys_remove
    done
    step 'target ends' host target_kill
done
finish

# What: our initiator uses the kernel's target over NVMe/TCP with TLS, for which tlshd accepts
# Kernels: stable backports
# Cell: ours → kernel `nvmet-tcp` | TCP, TLS
# Seconds: 600
. "$LAB/cell.sh"
initiator=ours transport=tcp address=$GUEST port=4420 nqn=$NQN

modprobe -a tls nvme-tcp
must 'tlshd starts' tlshd_start
must 'target starts' kernel_target tcp tls1.3
# Not keys for SHA-384: tlshd's GnuTLS (3.8.9; Debian's backports have no other) makes every binder with SHA-256.
for hash in 01; do
    keyed() { echo "$(tls_key $hash)" >/run/key && chmod 600 /run/key; }
    must "key with hash $hash" keyed
    for version in 0 1; do
        must "keys of version $version" tls_keys_insert $version
        # tlshd looks at the first identity that is offered, and at no other.
        tls="--tls --tls-key-file /run/key --tls-identity-version $version"
        step discover discover
        must connect connect
        step identify identify
        step flush flush
        case $version in 1) step 'fio verified' verify ;; esac
        step disconnect disconnect
        step 'keys away' tls_keys_remove
    done
done
finish

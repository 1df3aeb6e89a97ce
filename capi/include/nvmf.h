/* libnvmf: remote NVMe namespaces as block devices. SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Made by cbindgen from capi/src. docs/LIBRARY.md explains it with examples.
 *
 * Results. Functions that return int or ssize_t return a negative errno when they fail: -EINVAL for what is wrong with the
 * call (null, not whole blocks, beyond the end of the disk), and otherwise
 *
 *   -EIO          the medium failed, or a flush did, so that written data may be lost; or this machine lacks what a
 *                 connection needs (a key, a file, a thread)
 *   -EROFS        the disk is read-only
 *   -ENOSPC       no space is left behind the disk
 *   -EOPNOTSUPP   the disk has no such operation
 *   -EILSEQ       a compare found other data
 *   -EBADE        another host's reservation refuses it
 *   -ENOLINK      the disk is gone, or the connection was closed or given up; nvmf_open() cannot connect, or its name has
 *                 no address now
 *   -ETIMEDOUT    it (nvmf_open() too) has not ended in the time that the option timeout gives it, or its connection was lost again and again for
 *                 as long as operations wait for a lost connection
 *   -EREMOTEIO    the target failed
 *   -ENOMEM       there is no memory for it
 *   -ENOENT       there is no such namespace
 *
 * nvmf_last_error() says in words what failed, on what, and what to do; nvmf_last_effect() whether it may have taken effect.
 *
 * Threads. Every function may be called from any thread, several at once, on the same disk: but for nvmf_close(), which is
 * the last call on its disk, and nvmf_free(), which is the last on its memory. The library has a thread of its own for each
 * disk. A process that is forked off must open its own: with a disk of the process before it, calls fail (-EINVAL). While a thread or the process ends (destructors of C++, of
 * pthread keys, atexit()), calls work, but what failed is not kept: nvmf_last_error() does not know it. A
 * thread that is in a call must not be cancelled (pthread_cancel()).
 *
 * Memory. What a call is given it uses until it returns; until then nobody else writes to it, nor reads what a read fills. Memory
 * of a submitted operation belongs to the library until the operation's completion was returned by nvmf_poll() or nvmf_wait(): it
 * must not be touched until then, and comes from nvmf_alloc(). Where that completion says -ETIMEDOUT it stays the library's, for what
 * was sent goes on: give it back with nvmf_free() and take other. Strings that are returned belong to the library.
 *
 * Numbers. Offsets and lengths are bytes. Nothing is sent twice that must not be done twice. */


#ifndef NVMF_H
#define NVMF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define NVMF_VERSION_MAJOR 0
#define NVMF_VERSION_MINOR 1

/*
 Flag: what is written is durable when the operation ends (force unit access).
 */
#define NVMF_FUA 1

/*
 Flag of nvmf_write_zeroes(): the space of the range may be given back.
 */
#define NVMF_DEALLOCATE 2

/*
 Whether an operation took effect.
 */
typedef enum nvmf_effect {
  /*
   It did nothing.
   */
  NVMF_EFFECT_NONE = 0,
  /*
   It is not known: all of it, a part, or nothing. A write may be done again; what must not be done twice is looked at first.
   */
  NVMF_EFFECT_MAY_HAVE = 1,
  /*
   It did all of it.
   */
  NVMF_EFFECT_DONE = 2,
} nvmf_effect;

/*
 The state of a disk's connection.
 */
typedef enum nvmf_state {
  /*
   It was lost and is being set up again: operations wait.
   */
  NVMF_STATE_CONNECTING = 0,
  /*
   Operations flow.
   */
  NVMF_STATE_LIVE = 1,
  /*
   It is connected, and another disk is where this one was: operations wait, and fail in the end. None goes to the other disk.
   */
  NVMF_STATE_FOREIGN = 2,
  /*
   It was given up: operations fail with -ENOLINK.
   */
  NVMF_STATE_LOST = 3,
} nvmf_state;

/*
 A remote namespace that is connected to.
 */
typedef struct nvmf_disk nvmf_disk;

/*
 What a disk is. Later versions may add members at the end.
 */
typedef struct nvmf_info {
  /*
   Bytes in the disk. They may grow while it is open.
   */
  uint64_t size;
  /*
   Bytes in a block, a power of two from 512 to 65536.
   */
  uint32_t block_size;
  /*
   Bytes that one command moves. Longer operations are split, and then not atomic as a whole.
   */
  uint32_t max_transfer;
  /*
   Bytes that nvmf_compare_and_write() takes at most; 0: the disk has no such operation.
   */
  uint32_t max_compare_and_write;
  /*
   Writes of a multiple of so many bytes, aligned to it, cost the disk least.
   */
  uint32_t preferred_write;
  /*
   Number of the namespace.
   */
  uint32_t nsid;
  /*
   nvmf_state.
   */
  uint32_t state;
  /*
   Universally unique identifier, in the order in which it is written; zeroes: none.
   */
  uint8_t uuid[16];
  /*
   Namespace globally unique identifier, in the order in which it is written; zeroes: none.
   */
  uint8_t nguid[16];
  /*
   IEEE extended unique identifier, in the order in which it is written; zeroes: none.
   */
  uint8_t eui64[8];
  /*
   Writes fail with -EROFS.
   */
  bool read_only;
  /*
   What was written may be lost with the target's power until nvmf_flush(), or without NVMF_FUA.
   */
  bool volatile_cache;
  /*
   nvmf_discard() gives space back.
   */
  bool discards;
  /*
   What was discarded reads as zeroes.
   */
  bool discards_to_zeroes;
  /*
   nvmf_write_zeroes() works.
   */
  bool writes_zeroes;
  /*
   nvmf_compare() works.
   */
  bool compares;
  /*
   nvmf_copy() works.
   */
  bool copies;
  /*
   Zero.
   */
  bool reserved;
} nvmf_info;

/*
 An operation that has ended.
 */
typedef struct nvmf_completion {
  /*
   The number that it was submitted with.
   */
  uint64_t cookie;
  /*
   0, or a negative errno.
   */
  int32_t result;
  /*
   Whether it took effect.
   */
  enum nvmf_effect effect;
  /*
   Why it failed, for nvmf_reason().
   */
  uint32_t reason;
  /*
   More of that: the target's NVMe status, or an errno of its system; or 0.
   */
  uint32_t detail;
} nvmf_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 What failed in this thread's last call that failed, in words. Valid until the next call of this thread's; never null.
 */
const char *nvmf_last_error(void);

/*
 Whether this thread's last call that failed may have taken effect.
 */
enum nvmf_effect nvmf_last_effect(void);

/*
 Connects to a namespace, and stores the disk at *disk, for nvmf_close().

 It does not refuse a disk that this machine has attached (nvmf list): a file system on that would not learn of what is written here.

 uri: nvme+tcp://ADDRESS[:PORT]/NQN[/NSID] or nvme+rdma://...; the namespace may be left out where there is one only.

 options: "name=value" each, behind the last one a null pointer; null: none. Times are seconds, with a fraction where that is
 wanted:

   path=URI                  a further path to the same subsystem, without NQN; any number of them
   iopolicy=NAME             round-robin, queue-depth (default) or latency
   hostnqn=NQN, hostid=UUID  as whom; by default as this machine (/etc/nvme), which gets an identity where it has none
   host-traddr=ADDRESS       from which of this machine's addresses
   timeout=S                 an operation that has not ended by then fails with -ETIMEDOUT, and what was not sent of it
                             is never sent; what was, goes on, and others of its blocks wait for its end; by default none.
                             So does nvmf_open() itself
   io-timeout=S              a command that is not answered by then ends its connection; 30
   connect-timeout=S         for each connection, and for each answer while it is set up; 10 over TCP, 3 over RDMA, and
                             60 for an answer
   keep-alive-tmo=S          Keep Alive Timeout; 5
   reconnect-delay=S         before the first attempt to connect again; 1
   ctrl-loss-tmo=S           how long to try, before operations fail for good; 600, -1 is for ever
   fast-io-fail-tmo=S        how long operations wait for a reconnect before they fail; -1 (default): for its end
   nr-io-queues=N            1; queue-size=N  128
   hdr-digest=yes, data-digest=yes       checksums of NVMe/TCP
   tls-key-file=FILE         TLS with this key; tls=yes  with one of the kernel's keyring
   dhchap-secret-file=FILE   authentication; dhchap-ctrl-secret-file=FILE  also of the controller
 */
int nvmf_open(const char *uri,
              const char *const *options,
              struct nvmf_disk **disk);

/*
 Closes a disk, shuts its controller down and frees its memory (nvmf_alloc()). Operations that have not ended fail, and their
 completions are not returned. Null does nothing, nor does a disk of the process that this one was forked off from.
 */
void nvmf_close(struct nvmf_disk *disk);

/*
 Fills *info in: the first size bytes of it, for which the caller passes sizeof(struct nvmf_info). What this version does not know of is
 zero.
 */
int nvmf_identify(const struct nvmf_disk *disk,
                  struct nvmf_info *info,
                  size_t size);

/*
 Memory of len bytes for operations on this disk, which move it without a copy; page-aligned. Null when there is none:
 nvmf_last_error(). At most 65535 pieces at once; parts of one may be used by several operations.
 */
void *nvmf_alloc(const struct nvmf_disk *disk,
                 size_t len);

/*
 Gives memory of nvmf_alloc() back. Operations that have it keep it until they end. Null does nothing.
 */
int nvmf_free(const struct nvmf_disk *disk,
              void *data);

/*
 Reads len bytes from offset on into data, of any memory; none needs to be a multiple of the block size. Without a copy
 where they are, data is of nvmf_alloc(), and the disk has no option timeout. Returns len: all of it was read.
 */
ssize_t nvmf_pread(const struct nvmf_disk *disk,
                   void *data,
                   size_t len,
                   uint64_t offset);

/*
 Writes len bytes at offset from data, of any memory; as nvmf_pread(). A block that is written in part is read before and
 written whole: of two that write to the same block at once, one may lose what it wrote. flags: NVMF_FUA. Returns len: all
 of it was written. After a failure any part may be.
 */
ssize_t nvmf_pwrite(const struct nvmf_disk *disk,
                    const void *data,
                    size_t len,
                    uint64_t offset,
                    unsigned int flags);

/*
 Makes durable every write that ended before.
 */
int nvmf_flush(const struct nvmf_disk *disk);

/*
 Makes len bytes from offset on read as zeroes, whole blocks. flags: NVMF_FUA, NVMF_DEALLOCATE.
 */
int nvmf_write_zeroes(const struct nvmf_disk *disk,
                      uint64_t offset,
                      uint64_t len,
                      unsigned int flags);

/*
 Says that len bytes from offset on are not needed any more, whole blocks. They read as before or as zeroes.
 */
int nvmf_discard(const struct nvmf_disk *disk,
                 uint64_t offset,
                 uint64_t len);

/*
 Compares len bytes at offset with data, of any memory, whole blocks: 0 when they are the same, -EILSEQ when not.
 */
int nvmf_compare(const struct nvmf_disk *disk,
                 const void *data,
                 size_t len,
                 uint64_t offset);

/*
 Writes len bytes from data at offset if expected is what is there; -EILSEQ when not. No write of whatever host comes in between. Whole
 blocks, at most nvmf_info.max_compare_and_write bytes, of any memory. flags: NVMF_FUA. It is never sent twice: when its
 connection is lost meanwhile, nvmf_last_effect() is NVMF_EFFECT_MAY_HAVE, and a read of the place tells.
 */
int nvmf_compare_and_write(const struct nvmf_disk *disk,
                           const void *expected,
                           const void *data,
                           size_t len,
                           uint64_t offset,
                           unsigned int flags);

/*
 Has the target copy len bytes from the byte from to the byte to, whole blocks that do not overlap. -EOPNOTSUPP where it does not
 copy: nothing was done then, and reading and writing does the same. flags: NVMF_FUA.
 */
int nvmf_copy(const struct nvmf_disk *disk,
              uint64_t from,
              uint64_t to,
              uint64_t len,
              unsigned int flags);

/*
 Submits a read of len bytes from offset on into data, of nvmf_alloc(); whole blocks.

 This and the functions below return at once: 0 when the operation is under way, whose end nvmf_poll() or nvmf_wait()
 returns with its cookie, once. Operations may end in any order, and are carried out in any: what must be behind another is submitted
 after the other has ended. There is no bound on their number; those that the connection has no room for wait in it.
 */
int nvmf_submit_read(const struct nvmf_disk *disk,
                     void *data,
                     size_t len,
                     uint64_t offset,
                     uint64_t cookie);

/*
 Submits a write of len bytes at offset from data, of nvmf_alloc(); whole blocks. flags: NVMF_FUA.
 */
int nvmf_submit_write(const struct nvmf_disk *disk,
                      const void *data,
                      size_t len,
                      uint64_t offset,
                      unsigned int flags,
                      uint64_t cookie);

/*
 Submits a flush: makes durable every write whose end was returned before.
 */
int nvmf_submit_flush(const struct nvmf_disk *disk, uint64_t cookie);

/*
 Submits what nvmf_write_zeroes() does.
 */
int nvmf_submit_write_zeroes(const struct nvmf_disk *disk,
                             uint64_t offset,
                             uint64_t len,
                             unsigned int flags,
                             uint64_t cookie);

/*
 Submits what nvmf_discard() does.
 */
int nvmf_submit_discard(const struct nvmf_disk *disk,
                        uint64_t offset,
                        uint64_t len,
                        uint64_t cookie);

/*
 Submits what nvmf_compare() does, with data of nvmf_alloc().
 */
int nvmf_submit_compare(const struct nvmf_disk *disk,
                        const void *data,
                        size_t len,
                        uint64_t offset,
                        uint64_t cookie);

/*
 Submits what nvmf_compare_and_write() does. data is of nvmf_alloc() and has 2 * len bytes: those that are expected, and behind them those
 that are written.
 */
int nvmf_submit_compare_and_write(const struct nvmf_disk *disk,
                                  const void *data,
                                  size_t len,
                                  uint64_t offset,
                                  unsigned int flags,
                                  uint64_t cookie);

/*
 Submits what nvmf_copy() does.
 */
int nvmf_submit_copy(const struct nvmf_disk *disk,
                     uint64_t from,
                     uint64_t to,
                     uint64_t len,
                     unsigned int flags,
                     uint64_t cookie);

/*
 Stores up to max completions at *completions and returns how many; 0 when nothing has ended. It never blocks, and drives the
 connection: a program that calls it again and again has the least latency.
 */
int nvmf_poll(const struct nvmf_disk *disk,
              struct nvmf_completion *completions,
              int max);

/*
 The same; but while nothing has ended it waits, for at most timeout_ms milliseconds (negative: for ever). 0 when nothing ended in that
 time, or nothing is under way.
 */
int nvmf_wait(const struct nvmf_disk *disk,
              struct nvmf_completion *completions,
              int max,
              int timeout_ms);

/*
 A descriptor that is readable while nvmf_poll() has something to return: for poll(), select() and epoll. Call nvmf_arm() before each
 sleep on it. It is the library's: nobody else reads, writes or closes it. Or a negative errno.
 */
int nvmf_fd(const struct nvmf_disk *disk);

/*
 Has the library's own thread do what nvmf_poll() does otherwise, for a sleep on nvmf_fd(). Without it that thread takes over within two
 milliseconds.
 */
int nvmf_arm(const struct nvmf_disk *disk);

/*
 nvmf_completion.reason in words; never null.
 */
const char *nvmf_reason(uint32_t reason);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NVMF_H */

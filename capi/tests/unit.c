/* What the header promises, against a target: one disk of 24 MiB in blocks of 4096 bytes. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <nvmf.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                    \
    do {                                                                                    \
        if (!(condition)) {                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, nvmf_last_error()); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

enum { BLOCK = 4096 };
static struct nvmf_disk *disk;

static struct nvmf_completion ended(uint64_t cookie)
{
    struct nvmf_completion done;
    CHECK(nvmf_wait(disk, &done, 1, 20000) == 1);
    CHECK(done.cookie == cookie);
    return done;
}

static void blocking(void)
{
    char out[3 * BLOCK], in[3 * BLOCK], zeroes[BLOCK] = { 0 };
    memset(out, 'x', sizeof out);
    CHECK(nvmf_pwrite(disk, out, sizeof out, BLOCK, NVMF_FUA) == (ssize_t)sizeof out);
    CHECK(nvmf_pread(disk, in, sizeof in, BLOCK) == (ssize_t)sizeof in && memcmp(in, out, sizeof in) == 0);
    CHECK(nvmf_pwrite(disk, "hello", 5, BLOCK + 77, 0) == 5);
    CHECK(nvmf_pread(disk, in, 7, BLOCK + 76) == 7 && memcmp(in, "xhellox", 7) == 0);
    CHECK(nvmf_flush(disk) == 0);
    CHECK(nvmf_copy(disk, BLOCK, 100 * BLOCK, 3 * BLOCK, NVMF_FUA) == 0);
    CHECK(nvmf_pread(disk, in, 5, 100 * BLOCK + 77) == 5 && memcmp(in, "hello", 5) == 0);
    CHECK(nvmf_copy(disk, BLOCK, 2 * BLOCK, 3 * BLOCK, 0) == -EINVAL);
    CHECK(nvmf_last_effect() == NVMF_EFFECT_NONE && strstr(nvmf_last_error(), "overlap"));
    CHECK(nvmf_write_zeroes(disk, 2 * BLOCK, BLOCK, NVMF_DEALLOCATE) == 0);
    CHECK(nvmf_compare(disk, zeroes, BLOCK, 2 * BLOCK) == 0);
    CHECK(nvmf_compare(disk, out, BLOCK, 2 * BLOCK) == -EILSEQ);
    CHECK(nvmf_compare_and_write(disk, zeroes, out, BLOCK, 2 * BLOCK, 0) == 0);
    CHECK(nvmf_compare_and_write(disk, zeroes, out, BLOCK, 2 * BLOCK, 0) == -EILSEQ);
    CHECK(nvmf_last_effect() == NVMF_EFFECT_NONE);
    CHECK(nvmf_compare(disk, out, BLOCK, 2 * BLOCK) == 0);
    CHECK(nvmf_discard(disk, 2 * BLOCK, BLOCK) == 0);
}

static void submitted(void)
{
    struct nvmf_completion done;
    char *memory = nvmf_alloc(disk, 16 * BLOCK);
    CHECK(memory && (uintptr_t)memory % 4096 == 0);
    CHECK(nvmf_poll(disk, &done, 1) == 0);
    CHECK(nvmf_wait(disk, &done, 1, -1) == 0);
    memset(memory, 'a', 8 * BLOCK);
    for (uint64_t i = 0; i < 8; i++)
        CHECK(nvmf_submit_write(disk, memory + i * BLOCK, BLOCK, i * BLOCK, 0, i) == 0);
    unsigned seen = 0;
    for (int count = 0; count < 8;) {
        struct nvmf_completion some[3];
        int now = nvmf_poll(disk, some, 3);
        CHECK(now >= 0 && now <= 3);
        for (int i = 0; i < now; i++) {
            CHECK(some[i].result == 0 && some[i].effect == NVMF_EFFECT_DONE && !(seen >> some[i].cookie & 1));
            seen |= 1u << some[i].cookie;
        }
        count += now;
    }
    /* Beside other descriptors. */
    struct pollfd watched = { .fd = nvmf_fd(disk), .events = POLLIN, .revents = 0 };
    CHECK(poll(&watched, 1, 0) == 0);
    CHECK(nvmf_submit_read(disk, memory + 8 * BLOCK, 8 * BLOCK, 0, 99) == 0);
    CHECK(nvmf_arm(disk) == 0);
    CHECK(poll(&watched, 1, 20000) == 1);
    CHECK(nvmf_poll(disk, &done, 1) == 1 && done.cookie == 99 && done.result == 0);
    CHECK(memcmp(memory, memory + 8 * BLOCK, 8 * BLOCK) == 0);
    CHECK(poll(&watched, 1, 0) == 0);

    memset(memory + BLOCK, 'b', BLOCK);
    CHECK(nvmf_submit_compare_and_write(disk, memory, BLOCK, 0, 0, 1) == 0 && ended(1).result == 0);
    CHECK(nvmf_submit_compare_and_write(disk, memory, BLOCK, 0, 0, 2) == 0);
    done = ended(2);
    CHECK(done.result == -EILSEQ && done.effect == NVMF_EFFECT_NONE && strstr(nvmf_reason(done.reason), "differ"));
    CHECK(nvmf_submit_compare(disk, memory + BLOCK, BLOCK, 0, 3) == 0 && ended(3).result == 0);
    CHECK(nvmf_submit_copy(disk, 0, 50 * BLOCK, BLOCK, 0, 4) == 0 && ended(4).result == 0);
    CHECK(nvmf_submit_compare(disk, memory + BLOCK, BLOCK, 50 * BLOCK, 5) == 0 && ended(5).result == 0);
    CHECK(nvmf_submit_write_zeroes(disk, 0, BLOCK, 0, 6) == 0 && ended(6).result == 0);
    CHECK(nvmf_submit_discard(disk, 0, BLOCK, 7) == 0 && ended(7).result == 0);
    CHECK(nvmf_submit_flush(disk, 8) == 0 && ended(8).result == 0);

    /* Freed while an operation has it. */
    CHECK(nvmf_submit_read(disk, memory, 16 * BLOCK, 0, 9) == 0);
    CHECK(nvmf_free(disk, memory) == 0);
    CHECK(ended(9).result == 0);
    CHECK(nvmf_free(disk, memory) == -EINVAL && nvmf_free(disk, NULL) == 0);
}

static void *reader(void *start)
{
    char in[BLOCK];
    for (int i = 0; i < 200; i++)
        CHECK(nvmf_pread(disk, in, BLOCK, (uint64_t)(uintptr_t)start * BLOCK) == BLOCK);
    return NULL;
}

static void threads(void)
{
    pthread_t all[4];
    for (size_t i = 0; i < 4; i++)
        CHECK(pthread_create(&all[i], NULL, reader, (void *)i) == 0);
    for (size_t i = 0; i < 4; i++)
        CHECK(pthread_join(all[i], NULL) == 0);
}

static void misuse(const char *uri)
{
    char in[BLOCK];
    struct nvmf_disk *none = NULL;
    struct nvmf_completion done;
    struct nvmf_info info;
    uint64_t end = (uint64_t)24 << 20;

    CHECK(nvmf_open(NULL, NULL, &none) == -EINVAL && nvmf_open(uri, NULL, NULL) == -EINVAL);
    CHECK(nvmf_open("nvme+tcp://", NULL, &none) == -EINVAL && strstr(nvmf_last_error(), "no address"));
    CHECK(nvmf_open("\xff", NULL, &none) == -EINVAL && !none);
    const char *options[] = { "ctrl-loss-tmo=soon", NULL };
    CHECK(nvmf_open(uri, options, &none) == -EINVAL && strstr(nvmf_last_error(), "ctrl-loss-tmo=soon"));
    options[0] = "colour=red";
    CHECK(nvmf_open(uri, options, &none) == -EINVAL && strstr(nvmf_last_error(), "no such option"));
    const char *times[] = { "timeout=0", "io-timeout=0", "connect-timeout=0", "keep-alive-tmo=0" };
    for (size_t at = 0; at < sizeof times / sizeof *times; at++) {
        options[0] = times[at];
        CHECK(nvmf_open(uri, options, &none) == -EINVAL && strstr(nvmf_last_error(), "above 0"));
    }
    options[0] = "keep-alive-tmo=0.0001";
    CHECK(nvmf_open(uri, options, &none) == -EINVAL && strstr(nvmf_last_error(), "0.001"));
    const char *numbers[] = { "queue-size=1", "queue-size=99999", "queue-size=many" };
    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++) {
        options[0] = numbers[at];
        CHECK(nvmf_open(uri, options, &none) == -EINVAL && strstr(nvmf_last_error(), "from 2 to 1024"));
    }
    CHECK(nvmf_last_effect() == NVMF_EFFECT_NONE);
    /* A name server may be away for a moment. */
    const char *unknown = "nvme+tcp://storage-b.invalid/nqn.2026-11.com.example:disk";
    CHECK(nvmf_open(unknown, NULL, &none) == -ENOLINK && strstr(nvmf_last_error(), "storage-b.invalid"));
    options[0] = "timeout";
    CHECK(nvmf_open(uri, options, &none) == -EINVAL && strstr(nvmf_last_error(), "name=value"));
    nvmf_close(NULL);
    CHECK(nvmf_pread(NULL, in, BLOCK, 0) == -EINVAL && nvmf_pread(disk, NULL, BLOCK, 0) == -EINVAL);
    CHECK(nvmf_pread(disk, in, 0, 0) == 0 && nvmf_pread(disk, NULL, 0, 0) == 0);
    CHECK(nvmf_pread(disk, in, 1, end) == -EINVAL && nvmf_pread(disk, in, BLOCK, UINT64_MAX) == -EINVAL);
    CHECK(nvmf_pread(disk, in, SIZE_MAX, 0) == -EINVAL);
    CHECK(nvmf_pwrite(disk, in, BLOCK, end - 1, 0) == -EINVAL && strstr(nvmf_last_error(), "25165824"));
    CHECK(nvmf_pwrite(disk, in, BLOCK, 0, 0x80) == -EINVAL && strstr(nvmf_last_error(), "0x80"));
    CHECK(nvmf_write_zeroes(disk, 1, BLOCK, 0) == -EINVAL && nvmf_discard(disk, 0, UINT64_MAX) == -EINVAL);
    CHECK(nvmf_submit_read(disk, in, BLOCK, 0, 1) == -EINVAL && strstr(nvmf_last_error(), "nvmf_alloc"));
    char *memory = nvmf_alloc(disk, BLOCK);
    CHECK(memory && nvmf_submit_read(disk, memory, 2 * BLOCK, 0, 1) == -EINVAL);
    CHECK(nvmf_submit_read(disk, memory, 512, 0, 1) == -EINVAL && strstr(nvmf_last_error(), "4096"));
    CHECK(nvmf_submit_compare_and_write(disk, memory, SIZE_MAX, 0, 0, 1) == -EINVAL);
    CHECK(nvmf_alloc(disk, 0) == NULL && nvmf_alloc(NULL, 1) == NULL && nvmf_alloc(disk, SIZE_MAX) == NULL);
    CHECK(nvmf_poll(disk, NULL, 1) == -EINVAL && nvmf_poll(disk, &done, 0) == -EINVAL);
    CHECK(nvmf_poll(disk, &done, 1) == 0 && "nothing of all that was submitted");
    CHECK(nvmf_identify(disk, NULL, sizeof info) == -EINVAL && nvmf_fd(NULL) == -EINVAL && nvmf_arm(NULL) == -EINVAL);
    CHECK(nvmf_reason(12345) != NULL);
    /* A program that was compiled with a later header, and one with an earlier. */
    char larger[sizeof info + 8];
    memset(larger, 1, sizeof larger);
    CHECK(nvmf_identify(disk, (struct nvmf_info *)(void *)larger, sizeof larger) == 0 && larger[sizeof info] == 0);
    CHECK(nvmf_identify(disk, &info, 8) == 0 && info.size == end);
}

int main(int argc, char **argv)
{
    struct nvmf_info info;
    const char *options[] = { "timeout=20", "ctrl-loss-tmo=-1", "io-timeout=10.5", "nr-io-queues=2", NULL };

    if (argc < 4)
        return 2;
    if (nvmf_open(argv[1], options, &disk) != 0) {
        fprintf(stderr, "%s\n", nvmf_last_error());
        return 1;
    }
    CHECK(nvmf_identify(disk, &info, sizeof info) == 0);
    CHECK(info.size == (uint64_t)24 << 20 && info.block_size == BLOCK && info.nsid == 1);
    CHECK(info.max_transfer >= BLOCK && info.max_compare_and_write == BLOCK && info.state == NVMF_STATE_LIVE);
    CHECK(!info.read_only && info.compares && info.copies && info.writes_zeroes && info.discards);
    unsigned char none[16] = { 0 };
    CHECK(memcmp(info.uuid, none, 16) != 0);
    blocking();
    submitted();
    threads();
    misuse(argv[1]);
    nvmf_close(disk);

    /* Nobody listens there; and there is no such namespace. */
    struct nvmf_disk *other = NULL;
    const char *soon[] = { "connect-timeout=5", NULL };
    CHECK(nvmf_open(argv[2], soon, &other) == -ENOLINK && !other);
    CHECK(nvmf_last_effect() == NVMF_EFFECT_NONE);
    /* Somebody takes the connection there, and says nothing. */
    soon[0] = "connect-timeout=0.3";
    CHECK(nvmf_open(argv[3], soon, &other) == -ENOLINK && !other && nvmf_last_effect() == NVMF_EFFECT_NONE);
    soon[0] = "timeout=0.3";
    CHECK(nvmf_open(argv[3], soon, &other) == -ETIMEDOUT && !other && nvmf_last_effect() == NVMF_EFFECT_NONE);
    char uri[512];
    snprintf(uri, sizeof uri, "%.*s77", (int)strlen(argv[1]) - 1, argv[1]);
    CHECK(nvmf_open(uri, NULL, &other) == -ENOENT && strstr(nvmf_last_error(), "77"));
    puts("good");
    return 0;
}

/* Copies a disk to another, several reads and writes under way at once, and reads back what was written.
 *
 *   gcc -std=c11 copy.c -o copy $(pkg-config --cflags --libs libnvmf)
 *   ./copy nvme+tcp://192.0.2.1/NQN/1 nvme+tcp://192.0.2.2/NQN/1 [OPTION=VALUE...]
 *
 * The library does not refuse to write to a disk that this machine has attached (nvmf list): look first.
 */
#include <nvmf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 8 };
static const size_t PIECE = 256 * 1024;

/* A piece on its way. Its place in the list is the cookie of its operations. */
struct piece {
    void *data;
    size_t len;
    uint64_t offset;
};

static int failed(const char *what)
{
    const char *effect[] = { "nothing was done", "it may have been done", "it was done" };
    fprintf(stderr, "%s: %s (%s)\n", what, nvmf_last_error(), effect[nvmf_last_effect()]);
    return 1;
}

static int is_late(const struct nvmf_completion *done)
{
    if (done->result == 0)
        return 0;
    fprintf(stderr, "operation %llu: %s\n", (unsigned long long)done->cookie, nvmf_reason(done->reason));
    return 1;
}

/* Waits for one completion of the disk. */
static int next(const struct nvmf_disk *disk, struct nvmf_completion *done)
{
    int count = nvmf_wait(disk, done, 1, -1);
    return count == 1 ? is_late(done) : failed("waiting");
}

/* Both disks share the memory of nobody: pieces are read into memory of the one and written from memory of the other. */
static int copy(const struct nvmf_disk *from, const struct nvmf_disk *to, uint64_t size)
{
    struct piece reads[DEPTH], writes[DEPTH];
    struct nvmf_completion done;
    uint64_t next_offset = 0;
    int under_way = 0;

    for (int i = 0; i < DEPTH; i++) {
        reads[i].data = nvmf_alloc(from, PIECE);
        writes[i].data = nvmf_alloc(to, PIECE);
        if (!reads[i].data || !writes[i].data)
            return failed("memory");
        reads[i].len = 0;
        writes[i].len = 0;
    }
    do {
        for (int i = 0; i < DEPTH && next_offset < size; i++) {
            reads[i].offset = next_offset;
            reads[i].len = size - next_offset < PIECE ? (size_t)(size - next_offset) : PIECE;
            if (nvmf_submit_read(from, reads[i].data, reads[i].len, reads[i].offset, (uint64_t)i) < 0)
                return failed("a read");
            next_offset += reads[i].len;
            under_way++;
        }
        for (; under_way > 0; under_way--) {
            if (next(from, &done))
                return 1;
            struct piece *read = &reads[done.cookie], *write = &writes[done.cookie];
            memcpy(write->data, read->data, read->len);
            write->len = read->len;
            if (nvmf_submit_write(to, write->data, write->len, read->offset, 0, done.cookie) < 0)
                return failed("a write");
        }
        for (int i = 0; i < DEPTH; i++) {
            if (writes[i].len > 0 && next(to, &done))
                return 1;
            writes[i].len = 0;
        }
    } while (next_offset < size);
    if (nvmf_submit_flush(to, DEPTH) < 0 || next(to, &done))
        return failed("a flush");
    for (int i = 0; i < DEPTH; i++) {
        nvmf_free(from, reads[i].data);
        nvmf_free(to, writes[i].data);
    }
    return 0;
}

static int check(const struct nvmf_disk *from, const struct nvmf_disk *to, uint64_t size)
{
    static unsigned char one[1 << 16], two[1 << 16];

    for (uint64_t offset = 0; offset < size;) {
        size_t len = size - offset < sizeof one ? (size_t)(size - offset) : sizeof one;
        if (nvmf_pread(from, one, len, offset) < 0 || nvmf_pread(to, two, len, offset) < 0)
            return failed("reading back");
        if (memcmp(one, two, len) != 0) {
            fprintf(stderr, "they differ behind byte %llu\n", (unsigned long long)offset);
            return 1;
        }
        offset += len;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct nvmf_disk *from, *to;
    struct nvmf_info source, sink;

    if (argc < 3) {
        fprintf(stderr, "usage: copy FROM TO [OPTION=VALUE...]\n");
        return 2;
    }
    /* The arguments end with a null pointer, as the options do. */
    const char *const *options = (const char *const *)(argv + 3);
    if (nvmf_open(argv[1], options, &from) < 0 || nvmf_open(argv[2], options, &to) < 0)
        return failed("opening");
    if (nvmf_identify(from, &source, sizeof source) < 0 || nvmf_identify(to, &sink, sizeof sink) < 0)
        return failed("identifying");
    if (sink.size < source.size || sink.read_only) {
        fprintf(stderr, "the second disk is too small, or read-only\n");
        return 1;
    }
    if (copy(from, to, source.size) || check(from, to, source.size))
        return 1;
    printf("%llu bytes copied\n", (unsigned long long)source.size);
    nvmf_close(from);
    nvmf_close(to);
    return 0;
}

// Disks that are used while a thread or the process ends, and another's memory after a time-out.
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nvmf.h>
#include <pthread.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

static int check(bool good, const char *what)
{
    if (!good) {
        std::fprintf(stderr, "%s: %s\n", what, nvmf_last_error());
        std::_Exit(1);
    }
    return 0;
}

struct Disk {
    nvmf_disk *disk = nullptr;

    void open(const char *uri, const char *timeout)
    {
        const char *options[] = { timeout, nullptr };
        check(nvmf_open(uri, options, &disk) == 0, "open");
    }

    ~Disk()
    {
        char byte[1];
        // One that succeeds and waits, and one that fails.
        check(nvmf_flush(disk) == 0, "flush at the end");
        check(nvmf_pread(disk, byte, 1, UINT64_C(1) << 60) == -EINVAL, "a read beyond the end");
        check(nvmf_last_error() != nullptr, "words");
        nvmf_close(disk);
        std::puts("closed");
        std::fflush(stdout);
    }
};

static Disk of_process;

static void of_thread(const char *uri)
{
    static thread_local Disk disk;
    disk.open(uri, nullptr);
    check(nvmf_pwrite(disk.disk, "thread", 6, 0, 0) == 6, "a write");
}

// Destructors of a thread's keys run again for what they have set: by then the thread has nothing else of its own.
static pthread_key_t key;

static void of_key(void *rounds)
{
    char byte[1];
    Disk *disk = *static_cast<Disk **>(rounds);
    static int round;
    // Each sleeps for its answer once at least.
    for (int count = 0; count < 20; count++) {
        check(nvmf_pwrite(disk->disk, "key", 3, 4096, NVMF_FUA) == 3, "a write of a key's destructor");
        check(nvmf_flush(disk->disk) == 0, "a flush of a key's destructor");
    }
    check(nvmf_pread(disk->disk, byte, 1, UINT64_C(1) << 60) == -EINVAL, "a read beyond the end");
    if (++round % 3 != 0)
        pthread_setspecific(key, rounds);
}

static void of_keys(const char *uri)
{
    Disk disk, *of_thread = &disk;
    disk.open(uri, nullptr);
    check(pthread_key_create(&key, of_key) == 0, "a key");
    for (int before = 0; before < 2; before++) {
        std::thread thread([&] {
            pthread_setspecific(key, &of_thread);
            if (before == 1)
                check(nvmf_flush(disk.disk) == 0, "a flush");
        });
        thread.join();
    }
}

// What is forked off has no disk of the process before it, and opens its own.
static void of_fork(const char *uri)
{
    Disk disk;
    char byte[1];
    int status = 0;
    disk.open(uri, nullptr);
    pid_t child = fork();
    if (child == 0) {
        check(nvmf_pread(disk.disk, byte, 1, 0) == -EINVAL, "a read of the parent's disk");
        check(std::strstr(nvmf_last_error(), "forked off") != nullptr, "words");
        nvmf_close(disk.disk);
        Disk own;
        own.open(uri, nullptr);
        check(nvmf_flush(own.disk) == 0, "a flush of the child's disk");
        nvmf_close(own.disk);
        std::_Exit(0);
    }
    check(waitpid(child, &status, 0) == child && status == 0, "the child");
    check(nvmf_pread(disk.disk, byte, 1, 0) == 1, "a read in the parent");
}

// A read that ends with its time and goes on: what it brings later comes not into memory that the program uses again.
static void of_timed_out_read(const char *uri, int target)
{
    Disk late;
    late.open(uri, "timeout=0.5");
    char *memory = static_cast<char *>(nvmf_alloc(late.disk, 4096));
    char text[6];
    check(memory != nullptr, "memory");
    for (int tries = 0; nvmf_pread(late.disk, memory, 4096, 0) != 4096; tries++)
        check(tries < 100, "a read in time");
    // It may answer one more before it stands still.
    for (ssize_t result = 0; result != -ETIMEDOUT;) {
        kill(target, SIGSTOP);
        result = nvmf_pread(late.disk, memory, 4096, 0);
        std::memset(memory, 'm', 4096);
        kill(target, SIGCONT);
        check(result == 4096 || result == -ETIMEDOUT, "a read of a target that stands still");
    }
    // It is answered behind the first.
    for (int tries = 0; nvmf_pread(late.disk, text, 6, 0) != 6; tries++)
        check(tries < 100, "a read behind it");
    check(std::memcmp(text, "thread", 6) == 0, "what the thread wrote");
    for (int at = 0; at < 4096; at++)
        check(memory[at] == 'm', "memory that is the program's again");
}

int main(int, char **arguments)
{
    std::thread thread(of_thread, arguments[1]);
    thread.join();
    of_keys(arguments[1]);
    of_fork(arguments[1]);
    of_timed_out_read(arguments[1], std::atoi(arguments[2]));
    // Its memory of this thread is made before what ends with the process.
    check(nvmf_flush(nullptr) == -EINVAL, "a flush of nothing");
    of_process.open(arguments[1], nullptr);
    return 0;
}

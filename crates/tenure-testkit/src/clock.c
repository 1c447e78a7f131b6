/* Moves the wall clock of the process it is preloaded into, and puts its monotonic clock behind, as if its machine had
 * slept; no other clock.
 *
 * The file that TENURE_TEST_CLOCK names has three 64-bit numbers of nanoseconds: the offset of the wall clock, the
 * time at which it stands still (0: it does not), and by how much the monotonic clock is behind. The file is mapped,
 * so that what the test writes there counts at once.
 *
 * Everything is asked of the kernel directly and nothing is allocated: allocators read the clock while
 * they start, and a call into libc's own would find them half-way.
 *
 * A program that asks the kernel without libc (Go, static binaries) does not see it; tracer.c is for those.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t SECOND = 1000000000;

/* A system call without libc's function, which this library replaces below. The error is a negative number. */
static long ask_kernel(long number, const long argument[6])
{
#if defined(__x86_64__)
    long result;
    register long fourth __asm__("r10") = argument[3];
    register long fifth __asm__("r8") = argument[4];
    register long sixth __asm__("r9") = argument[5];
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(argument[0]), "S"(argument[1]), "d"(argument[2]), "r"(fourth), "r"(fifth),
                       "r"(sixth)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long name __asm__("x8") = number;
    register long first __asm__("x0") = argument[0];
    register long second __asm__("x1") = argument[1];
    register long third __asm__("x2") = argument[2];
    register long fourth __asm__("x3") = argument[3];
    register long fifth __asm__("x4") = argument[4];
    register long sixth __asm__("x5") = argument[5];
    __asm__ volatile("svc 0"
                     : "+r"(first)
                     : "r"(name), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth)
                     : "memory");
    return first;
#else
#error "system calls of this processor are missing here"
#endif
}

/* Two threads may both map the file for the first time: both get the same, and one mapping is forgotten. */
static const volatile int64_t *settings(void)
{
    static _Atomic(const volatile int64_t *) mapped;
    static const volatile int64_t none[3];
    const volatile int64_t *at = mapped;
    if (!at) {
        const char *path = getenv("TENURE_TEST_CLOCK");
        long file = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
        void *memory = file < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, (int)file, 0);
        if (file >= 0)
            syscall(SYS_close, file);
        at = memory == MAP_FAILED ? none : memory;
        mapped = at;
    }
    return at;
}

static int is_wall_clock(clockid_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

static int is_monotonic(clockid_t clock)
{
    return clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE || clock == CLOCK_MONOTONIC_RAW;
}

static struct timespec moved(struct timespec time, int64_t by)
{
    int64_t total = (int64_t)time.tv_sec * SECOND + time.tv_nsec + by;
    return (struct timespec){ .tv_sec = total / SECOND, .tv_nsec = total % SECOND };
}

/* What a wall clock shows at this time. */
static struct timespec shown(struct timespec time)
{
    int64_t stands = settings()[1];
    return stands ? moved((struct timespec){ 0 }, stands) : moved(time, settings()[0]);
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (result == 0 && is_wall_clock(clock))
        *time = shown(*time);
    else if (result == 0 && is_monotonic(clock))
        *time = moved(*time, -settings()[2]);
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    if (result == 0) {
        time->tv_sec = now.tv_sec;
        time->tv_usec = now.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}

/* A time to wait until was computed from the moved clock and is waited for on the true one: without
 * this a jump of an hour makes a wait of a second last an hour. A small number is on the monotonic clock. */
int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until)
{
    if (until->tv_sec < SECOND) {
        struct timespec true_time = moved(*until, settings()[2]);
        return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &true_time);
    }
    struct timespec true_until = moved(*until, -settings()[0]);
    return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &true_until);
}

/* Rust waits for a futex until a time on the monotonic clock. If that clock is behind, such a time is over at once, and
 * the thread would not sleep but ask again and again. */
long syscall(long number, ...)
{
    long argument[6];
    struct timespec true_time;
    va_list list;
    va_start(list, number);
    for (int at = 0; at < 6; at++)
        argument[at] = va_arg(list, long);
    va_end(list);
    if (number == SYS_futex && (argument[1] & ~FUTEX_PRIVATE_FLAG) == FUTEX_WAIT_BITSET && argument[3]) {
        true_time = moved(*(const struct timespec *)argument[3], settings()[2]);
        argument[3] = (long)&true_time;
    }
    long result = ask_kernel(number, argument);
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return -1;
    }
    return result;
}

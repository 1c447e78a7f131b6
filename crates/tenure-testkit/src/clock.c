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
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t SECOND = 1000000000;

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

/* A disk that is full whenever a test says so: writes fail while DIR/write exists, syncs while DIR/sync exists, where DIR is the
 * value of TENURE_TEST_FULL_DISK. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int fails(const char *what)
{
    char path[4096];
    const char *dir = getenv("TENURE_TEST_FULL_DISK");
    if (dir == NULL)
        return 0;
    snprintf(path, sizeof path, "%s/%s", dir, what);
    return access(path, F_OK) == 0;
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at)
{
    ssize_t (*next)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
    if (fails("write")) {
        errno = ENOSPC;
        return -1;
    }
    return next(fd, bytes, len, at);
}

int fdatasync(int fd)
{
    int (*next)(int) = dlsym(RTLD_NEXT, "fdatasync");
    if (fails("sync")) {
        errno = ENOSPC;
        return -1;
    }
    return next(fd);
}

/* A disk that loses, with the power, whatever it was not told to keep.
 *
 * Preloaded into a server, it copies each file that is synced, as it is at that moment, to the folder that
 * TENURE_TEST_DISK names, once that is there; renaming and removing count at once, as with an ordered journal. The
 * path within that folder is what follows the part that begins with `tenure-test-`.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where what is kept of `path` lies. False: nothing is. */
static int kept(const char *path, char *there)
{
    char whole[PATH_MAX];
    const char *root = getenv("TENURE_TEST_DISK");
    if (!root || access(root, F_OK) != 0)
        return 0;
    if (path[0] != '/') {
        char folder[PATH_MAX];
        if (!getcwd(folder, sizeof folder))
            return 0;
        if (snprintf(whole, sizeof whole, "%s/%s", folder, path) >= (int)sizeof whole)
            return 0;
        path = whole;
    }
    const char *place = strstr(path, "/tenure-test-");
    const char *rest = place ? strchr(place + 1, '/') : NULL;
    return rest && snprintf(there, PATH_MAX, "%s%s", root, rest) < PATH_MAX;
}

static void make_folders(char *path)
{
    for (char *at = strchr(path + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = 0;
        mkdir(path, 0700);
        *at = '/';
    }
}

/* The file that is open as `link`, of a process in /proc. */
static void keep(const char *link)
{
    char path[PATH_MAX], there[PATH_MAX], copy[PATH_MAX + 64];
    struct stat file;
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return;
    path[length] = 0;
    if (stat(link, &file) != 0 || !S_ISREG(file.st_mode) || file.st_nlink == 0 || !kept(path, there))
        return;
    /* Whole or not at all, should the process be killed meanwhile. */
    snprintf(copy, sizeof copy, "%s/.%ld", getenv("TENURE_TEST_DISK"), (long)syscall(SYS_gettid));
    make_folders(there);
    int from = open(path, O_RDONLY | O_CLOEXEC);
    int to = open(copy, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, file.st_mode & 07777);
    while (from >= 0 && to >= 0 && sendfile(to, from, NULL, 1 << 30) > 0)
        ;
    if (from >= 0 && to >= 0)
        syscall(SYS_rename, copy, there);
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
}

static void keep_own(int file)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    keep(link);
}

static void renamed(const char *from, const char *to)
{
    char here[PATH_MAX], there[PATH_MAX];
    if (kept(from, here) && kept(to, there))
        syscall(SYS_rename, here, there);
}

static void removed(const char *path)
{
    char there[PATH_MAX];
    if (kept(path, there))
        syscall(SYS_unlink, there);
}

int fsync(int file)
{
    keep_own(file);
    return (int)syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
    keep_own(file);
    return (int)syscall(SYS_fdatasync, file);
}

int rename(const char *from, const char *to)
{
    int result = (int)syscall(SYS_rename, from, to);
    if (result == 0)
        renamed(from, to);
    return result;
}

int unlink(const char *path)
{
    int result = (int)syscall(SYS_unlink, path);
    if (result == 0)
        removed(path);
    return result;
}

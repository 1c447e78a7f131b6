/* Runs a program that asks the kernel without libc (Go), with the clock of clock.c and the disk of disk.c.
 *
 *     tracer PROGRAM [ARG]...
 *
 * The program keeps the process. A child of it looks on: seccomp stops those calls that matter, ptrace tells the child.
 * The clock is also read from a page of code that the kernel maps into every process (the vDSO). The program is not
 * told where that is, and so has to ask the kernel.
 */
#include "clock.c"
#include "disk.c"

#include <elf.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

/* What a thread is about to do, by its id; none is greater. */
static struct {
    uint64_t number, arguments[6];
} calls[1 << 22];

static void give_up(const char *what)
{
    perror(what);
    _exit(1);
}

static void stop_calls(void)
{
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
#define UNLESS(number, then) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 1, 0), then
#define STOP(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), RETURN(SECCOMP_RET_TRACE)
    struct sock_filter filter[] = {
        LOAD(nr),
        STOP(SYS_fsync),
        STOP(SYS_fdatasync),
        STOP(SYS_renameat),
        STOP(SYS_unlinkat),
        UNLESS(SYS_clock_gettime, RETURN(SECCOMP_RET_ALLOW)),
        /* The half that counts, where numbers begin with it. */
        LOAD(args[0]),
        STOP(CLOCK_REALTIME),
        STOP(CLOCK_REALTIME_COARSE),
        RETURN(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { .len = sizeof filter / sizeof *filter, .filter = filter };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        give_up("seccomp");
}

static uint64_t peek(pid_t thread, uint64_t at)
{
    return (uint64_t)ptrace(PTRACE_PEEKDATA, thread, at, 0);
}

static void poke(pid_t thread, uint64_t at, uint64_t value)
{
    ptrace(PTRACE_POKEDATA, thread, at, value);
}

static void peek_text(pid_t thread, uint64_t at, char *text)
{
    for (size_t got = 0; got + sizeof(uint64_t) <= PATH_MAX; got += sizeof(uint64_t)) {
        uint64_t word = peek(thread, at + got);
        memcpy(text + got, &word, sizeof word);
        if (memchr(&word, 0, sizeof word))
            return;
    }
    text[0] = 0;
}

/* On the stack of a new program: how many arguments, they, 0, its environment, 0, then pairs for its loader. */
static void hide_vdso(pid_t thread)
{
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) <= 0)
        give_up("no stack");
    uint64_t at = info.stack_pointer;
    at += (peek(thread, at) + 2) * sizeof at;
    while (peek(thread, at))
        at += sizeof at;
    for (at += sizeof at; peek(thread, at) != AT_NULL; at += 2 * sizeof at)
        if (peek(thread, at) == AT_SYSINFO_EHDR)
            poke(thread, at, AT_IGNORE);
}

/* Whether its end matters, too. */
static int begins(pid_t thread)
{
    struct __ptrace_syscall_info info;
    char link[64];
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) <= 0)
        return 0;
    calls[thread].number = info.seccomp.nr;
    memcpy(calls[thread].arguments, info.seccomp.args, sizeof calls[thread].arguments);
    if (info.seccomp.nr != SYS_fsync && info.seccomp.nr != SYS_fdatasync)
        return 1;
    snprintf(link, sizeof link, "/proc/%d/fd/%d", thread, (int)info.seccomp.args[0]);
    keep(link);
    return 0;
}

static void ends(pid_t thread)
{
    struct __ptrace_syscall_info info;
    char from[PATH_MAX], to[PATH_MAX];
    const uint64_t *arguments = calls[thread].arguments;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof info, &info) <= 0 || info.exit.is_error)
        return;
    switch (calls[thread].number) {
    case SYS_clock_gettime: {
        struct timespec now = { .tv_sec = (time_t)peek(thread, arguments[1]),
                                .tv_nsec = (long)peek(thread, arguments[1] + 8) };
        now = shown(now);
        poke(thread, arguments[1], (uint64_t)now.tv_sec);
        poke(thread, arguments[1] + 8, (uint64_t)now.tv_nsec);
        break;
    }
    case SYS_renameat:
        peek_text(thread, arguments[1], from);
        peek_text(thread, arguments[3], to);
        renamed(from, to);
        break;
    case SYS_unlinkat:
        peek_text(thread, arguments[1], from);
        removed(from);
    }
}

static int look_on(void)
{
    for (;;) {
        int status;
        pid_t thread = waitpid(-1, &status, __WALL);
        if (thread < 0 && errno == EINTR)
            continue;
        if (thread < 0)
            return 0;
        if (!WIFSTOPPED(status))
            continue;
        int event = status >> 16, signal = WSTOPSIG(status), way = PTRACE_CONT, passed = 0;
        if (event == PTRACE_EVENT_SECCOMP) {
            if (begins(thread))
                way = PTRACE_SYSCALL;
        } else if (event == PTRACE_EVENT_EXEC)
            hide_vdso(thread);
        else if (event == PTRACE_EVENT_STOP && signal != SIGTRAP)
            /* Stopped by somebody else, until that one lets it go on. */
            way = PTRACE_LISTEN;
        else if (signal == (SIGTRAP | 0x80))
            ends(thread);
        else if (event == 0)
            passed = signal;
        ptrace(way, thread, 0, passed);
    }
}

int main(int count, char **words)
{
    int ready[2];
    char byte;
    if (count < 2 || pipe2(ready, O_CLOEXEC) != 0)
        return 2;
    pid_t program = getpid(), child = fork();
    if (child < 0)
        give_up("fork");
    if (child == 0) {
        long options = PTRACE_O_TRACESECCOMP | PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_TRACECLONE |
                       PTRACE_O_EXITKILL;
        close(ready[0]);
        /* What is done to the program by its group is not done to us. */
        setsid();
        if (ptrace(PTRACE_SEIZE, program, 0, options) != 0)
            give_up("ptrace");
        if (write(ready[1], "", 1) != 1)
            give_up("pipe");
        close(ready[1]);
        return look_on();
    }
    close(ready[1]);
    /* Where only descendants may be looked at. */
    prctl(PR_SET_PTRACER, child, 0, 0, 0);
    if (read(ready[0], &byte, 1) != 1)
        return 1;
    stop_calls();
    execvp(words[1], words + 1);
    give_up(words[1]);
}

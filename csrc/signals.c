/* Fatal signals: taskd's handler stays installed in the kernel, and calls those that the program
 * installs, which are kept in a table. In the other order a handler such as faulthandler's would
 * run first and raise the signal again, and the fault address would be lost. */
#include "internal.h"

#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

/* Large enough for handlers written for an ordinary stack. Untouched pages cost nothing. */
#define STACK_BYTES (256u * 1024u)
#define GUARD_BYTES (64u * 1024u) /* a multiple of every page size in use */

static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
#define NFATAL (sizeof fatal / sizeof fatal[0])

/* The program's view of one signal. Two copies and a version, so that a handler can read while
 * another thread writes, and a fork during a write leaves the child a complete one. */
static struct program_action {
    uint32_t version;
    struct sigaction copies[2];
    int32_t told; /* tid that wrote the last record of this signal */
} program[NFATAL];

static char writing; /* spin lock; held with all signals blocked, for two copies of a struct */
static bool installed;

static int slot_of(int sig)
{
    for (unsigned i = 0; i < NFATAL; i++)
        if (fatal[i] == sig)
            return (int)i;
    return -1;
}

bool taskd_is_fatal(int sig)
{
    return slot_of(sig) >= 0;
}

static struct sigaction action_get(const struct program_action *p)
{
    for (;;) {
        uint32_t version = __atomic_load_n(&p->version, __ATOMIC_ACQUIRE);
        struct sigaction copy = p->copies[version % 2];
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&p->version, __ATOMIC_RELAXED) == version)
            return copy;
    }
}

static void action_set(struct program_action *p, const struct sigaction *act)
{
    p->copies[(p->version + 1) % 2] = *act;
    __atomic_store_n(&p->version, p->version + 1, __ATOMIC_RELEASE);
}

static void lock_actions(sigset_t *saved)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, saved);
    while (__atomic_test_and_set(&writing, __ATOMIC_ACQUIRE))
        ;
}

static void unlock_actions(const sigset_t *saved)
{
    __atomic_clear(&writing, __ATOMIC_RELEASE);
    pthread_sigmask(SIG_SETMASK, saved, NULL);
}

static uint64_t instruction_pointer(const void *context)
{
    if (context == NULL)
        return 0;
    const ucontext_t *uc = context;
#if defined(__x86_64__)
    return (uint64_t)uc->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return uc->uc_mcontext.pc;
#else
    (void)uc;
    return 0;
#endif
}

/* One record per death: abort() has written its own, and a handler that gets a fault raises the
 * signal again for the next handler. */
static bool already_told(struct program_action *p, int sig, const siginfo_t *info)
{
    int32_t tid = taskd_tid();
    if (sig == SIGABRT && __atomic_load_n(&taskd_self.aborting, __ATOMIC_RELAXED) == tid)
        return true;
    int32_t before = __atomic_exchange_n(&p->told, tid, __ATOMIC_RELAXED);
    return before == tid && info->si_code == SI_TKILL && info->si_pid == taskd_self.pid;
}

/* End as if the signal had never been handled. It is sent again with the kernel's siginfo, so that
 * a core file shows the true cause; returning to let the fault repeat would not work for a signal
 * from outside. */
static void die(int sig, siginfo_t *info)
{
    struct sigaction dfl;
    memset(&dfl, 0, sizeof dfl);
    dfl.sa_handler = SIG_DFL;
    taskd_real_sigaction(sig, &dfl, NULL);
    pid_t pid = getpid();
    int32_t tid = taskd_tid();
    if (syscall(SYS_rt_tgsigqueueinfo, pid, tid, sig, info) != 0)
        syscall(SYS_tgkill, pid, tid, sig);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, sig);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static void on_fatal(int sig, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    if (sig == SIGBUS && taskd_damage_contain(info, instruction_pointer(context))) {
        errno = saved_errno;
        return;
    }
    struct program_action *p = &program[slot_of(sig)];
    struct sigaction next = action_get(p);
    /* si_code > 0: the kernel reports a fault of an instruction, which cannot be ignored. */
    if (next.sa_handler == SIG_IGN && info->si_code <= 0)
        return;
    bool own = taskd_own_slot() != NULL;
    if (own && !already_told(p, sig, info)) {
        bool fault = info->si_code > 0;
        taskd_record(TASKD_RECORD_SIGNAL, sig, info->si_code,
                     fault ? (uint64_t)(uintptr_t)info->si_addr : 0, instruction_pointer(context));
    }
    if (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN) {
        die(sig, info);
        errno = saved_errno;
        return;
    }
    if (own && (next.sa_flags & (int)SA_RESETHAND) != 0) {
        struct sigaction dfl;
        memset(&dfl, 0, sizeof dfl);
        dfl.sa_handler = SIG_DFL;
        taskd_signals_virtual(sig, &dfl, NULL);
    }
    /* on_fatal has SA_NODEFER and an empty mask; the kernel restores the old mask on return. */
    sigset_t mask = next.sa_mask;
    if ((next.sa_flags & SA_NODEFER) == 0)
        sigaddset(&mask, sig);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    errno = saved_errno;
    if ((next.sa_flags & SA_SIGINFO) != 0)
        next.sa_sigaction(sig, info, context);
    else
        next.sa_handler(sig);
}

static void install_ours(int sig, int program_flags)
{
    struct sigaction ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_fatal;
    /* SA_NODEFER: a fault inside a chained handler is recorded too. SA_RESTART is the program's
     * choice: it decides how its own interrupted system calls behave. */
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | (program_flags & SA_RESTART);
    taskd_real_sigaction(sig, &ours, NULL);
}

/* Give the calling thread an alternate stack, so that a stack overflow is recorded too. */
static void alternate_stack(void)
{
    static char *stack;
    stack_t now;
    if (sigaltstack(NULL, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0)
        return;
    if (stack == NULL) {
        char *area = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
        if (area == MAP_FAILED)
            return;
        mprotect(area, GUARD_BYTES, PROT_NONE);
        stack = area + GUARD_BYTES;
    }
    stack_t ours = {.ss_sp = stack, .ss_size = STACK_BYTES, .ss_flags = 0};
    sigaltstack(&ours, NULL);
}

void taskd_signals_install(void)
{
    alternate_stack();
    for (unsigned i = 0; i < NFATAL; i++) {
        struct sigaction now;
        program[i].told = 0;
        if (taskd_real_sigaction(fatal[i], NULL, &now) != 0)
            continue;
        if (now.sa_sigaction != on_fatal)
            action_set(&program[i], &now);
        install_ours(fatal[i], now.sa_flags);
    }
    __atomic_store_n(&installed, true, __ATOMIC_RELEASE);
}

void taskd_signals_restore(void)
{
    if (!__atomic_exchange_n(&installed, false, __ATOMIC_ACQ_REL))
        return;
    for (unsigned i = 0; i < NFATAL; i++) {
        struct sigaction now, theirs = action_get(&program[i]);
        /* Without interposition the program may have replaced on_fatal: then restore nothing. */
        if (taskd_real_sigaction(fatal[i], NULL, &now) == 0 && now.sa_sigaction == on_fatal)
            taskd_real_sigaction(fatal[i], &theirs, NULL);
    }
}

void taskd_signals_child(void)
{
    /* The thread that held it does not exist here. */
    __atomic_clear(&writing, __ATOMIC_RELAXED);
    taskd_signals_restore();
}

/* Do what sigaction would have done for the program. false: call the real one. */
bool taskd_signals_virtual(int sig, const struct sigaction *act, struct sigaction *old)
{
    int i = slot_of(sig);
    /* Another pid: a vfork child shares memory but not handlers; subprocess resets signals there.
     * */
    if (i < 0 || !__atomic_load_n(&installed, __ATOMIC_ACQUIRE) || taskd_own_slot() == NULL)
        return false;
    struct sigaction wanted, before;
    if (act != NULL)
        wanted = *act;
    sigset_t saved;
    lock_actions(&saved);
    before = action_get(&program[i]);
    if (act != NULL) {
        action_set(&program[i], &wanted);
        if (((before.sa_flags ^ wanted.sa_flags) & SA_RESTART) != 0)
            install_ours(sig, wanted.sa_flags);
    }
    unlock_actions(&saved);
    if (old != NULL)
        *old = before;
    return true;
}

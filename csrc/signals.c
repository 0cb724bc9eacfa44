/* Fatal signals, and the one that asks the job to leave: taskd's handler stays installed in the
 * kernel, and calls those that the program installs, which are kept in a table. In the other order
 * a handler such as faulthandler's would run first and raise the signal again, and the fault
 * address would be lost. */
#include "internal.h"

#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

/* Large enough for handlers written for an ordinary stack. Untouched pages cost nothing. */
#define STACK_BYTES (256u * 1024u)
#define GUARD_BYTES (64u * 1024u) /* a multiple of every page size in use */

static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
#define NFATAL (sizeof fatal / sizeof fatal[0])
#define LEAVE ((int)NFATAL) /* the row of the signal that asks to leave, see taskd_leave_on */

static int leave_signal; /* 0: none */
static int32_t spared;   /* this process, if it is a child that leave_signal has to spare */
static bool leave_off;   /* it acts as if taskd_leave_on had never been called */

/* The program's view of one signal. Two copies and a version, so that a handler can read while
 * another thread writes, and a fork during a write leaves the child a complete one. */
static struct program_action {
    uint32_t version;
    struct sigaction copies[2];
    int32_t told; /* tid that wrote the last record of this signal */
} program[NFATAL + 1];

static char writing; /* spin lock; held with all signals blocked, for two copies of a struct */
static bool installed;

static int slot_of(int sig)
{
    for (unsigned i = 0; i < NFATAL; i++)
        if (fatal[i] == sig)
            return (int)i;
    return sig != 0 && sig == leave_signal ? LEAVE : -1;
}

bool taskd_is_fatal(int sig)
{
    int i = slot_of(sig);
    return i >= 0 && i != LEAVE;
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

static bool handled(const struct sigaction *action)
{
    return action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

/* The signal that asks the job to leave. */
static void on_leave(int sig, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    struct taskd_slot *slot = taskd_own_slot();
    bool acts = leave_off || (slot != NULL ? __atomic_load_n(&taskd_self.page->ending,
                                                             __ATOMIC_ACQUIRE) != 0
                                           : info->si_pid == getppid());
    if (slot != NULL && !acts) {
        __atomic_store_n(&slot->asked, sig, __ATOMIC_RELEASE);
        __atomic_fetch_add(&taskd_self.page->bell, 1, __ATOMIC_RELEASE);
        taskd_wake(&taskd_self.page->bell);
    }
    struct sigaction next = action_get(&program[LEAVE]);
    if (handled(&next) && (acts || slot != NULL)) {
        errno = saved_errno;
        if ((next.sa_flags & SA_SIGINFO) != 0)
            next.sa_sigaction(sig, info, context);
        else
            next.sa_handler(sig);
    } else if (acts && next.sa_handler == SIG_DFL) {
        die(sig, info);
    }
    errno = saved_errno;
}

static void install_ours(int sig, int program_flags)
{
    struct sigaction ours;
    memset(&ours, 0, sizeof ours);
    bool leave = slot_of(sig) == LEAVE;
    ours.sa_sigaction = leave ? on_leave : on_fatal;
    /* SA_NODEFER: a fault inside a chained handler is recorded too. SA_RESTART is the program's
     * choice: it decides how its own interrupted system calls behave. */
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | (leave ? 0 : SA_NODEFER) |
                    (program_flags & SA_RESTART);
    taskd_real_sigaction(sig, &ours, NULL);
}

int taskd_leave_on(int sig)
{
    struct taskd_slot *slot = taskd_own_slot();
    if (slot == NULL)
        return -ENOTCONN;
    leave_off = sig == 0;
    if (sig == 0 || sig == leave_signal)
        return 0;
    if (sig < 0 || slot_of(sig) >= 0)
        return -EINVAL;
    struct sigaction now;
    if (leave_signal != 0 || taskd_real_sigaction(sig, NULL, &now) != 0)
        return -EINVAL;
    sigset_t saved;
    lock_actions(&saved);
    action_set(&program[LEAVE], &now);
    leave_signal = sig;
    __atomic_store_n(&slot->handles, handled(&now), __ATOMIC_RELAXED);
    /* without a handler, system calls go on as if the signal had not come */
    install_ours(sig, handled(&now) ? now.sa_flags : SA_RESTART);
    unlock_actions(&saved);
    return 0;
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
    if (leave_signal != 0)
        spared = (int32_t)getpid();
}

/* Do what sigaction would have done for the program. false: call the real one. */
bool taskd_signals_virtual(int sig, const struct sigaction *act, struct sigaction *old)
{
    int i = slot_of(sig);
    /* Another pid: a vfork child shares memory but not handlers; subprocess resets signals there.
     * */
    struct taskd_slot *slot = taskd_own_slot();
    bool ours = i == LEAVE ? slot != NULL || spared == (int32_t)getpid()
                           : slot != NULL && __atomic_load_n(&installed, __ATOMIC_ACQUIRE);
    if (i < 0 || !ours)
        return false;
    struct sigaction wanted, before;
    if (act != NULL)
        wanted = *act;
    sigset_t saved;
    lock_actions(&saved);
    before = action_get(&program[i]);
    if (act != NULL) {
        action_set(&program[i], &wanted);
        if (i == LEAVE && slot != NULL)
            __atomic_store_n(&slot->handles, handled(&wanted), __ATOMIC_RELAXED);
        if (i == LEAVE || ((before.sa_flags ^ wanted.sa_flags) & SA_RESTART) != 0)
            install_ours(sig, i == LEAVE && !handled(&wanted) ? SA_RESTART : wanted.sa_flags);
    }
    unlock_actions(&saved);
    if (old != NULL)
        *old = before;
    return true;
}

/* Parents, groups, sessions, a zombie, a stopped child, a session leader: all ids and relations are
 * unchanged. */
/* case: root */
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

static volatile struct {
	pid_t leader, member, session, stopped, zombie, orphan, orphan_parent;
	int ready, go;
} * shared;

static void until_going(void)
{
	while (!__atomic_load_n(&shared->go, __ATOMIC_SEQ_CST))
		case_sleep_ms(20);
}

/* In a group of its own, with a member. */
static void group_leader(void)
{
	CHECK(setpgid(0, 0) == 0);
	shared->leader = getpid();
	pid_t me = getpid(), child = fork();
	if (child == 0) {
		shared->member = getpid();
		__atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
		until_going();
		_exit(getpgrp() == me && getppid() == me ? 31 : 1);
	}
	until_going();
	int status;
	CHECK(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 31);
	_exit(getpgrp() == me && getpid() == me ? 32 : 1);
}

static void session_leader(void)
{
	CHECK(setsid() == getpid());
	shared->session = getpid();
	__atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
	until_going();
	_exit(getsid(0) == shared->session && getpgrp() == shared->session ? 33 : 1);
}

static pid_t start(void (*run)(void))
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		run();
		_exit(99);
	}
	return child;
}

static int status_of(pid_t child)
{
	int status = -1;

	CHECK(waitpid(child, &status, 0) == child);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int main(void)
{
	siginfo_t info;
	int status;

	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t me = getpid(), parent = getppid(), group = getpgrp(), session = getsid(0);
	pid_t leader = start(group_leader), own_session = start(session_leader), zombie = fork();
	if (zombie == 0)
		_exit(34);
	pid_t stopped = fork();
	if (stopped == 0) {
		raise(SIGSTOP);
		_exit(35);
	}
	CHECK(waitpid(stopped, &status, WUNTRACED) == stopped && WIFSTOPPED(status));
	CHECK(waitid(P_PID, (id_t)zombie, &info, WEXITED | WNOWAIT) == 0);
	while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < 2)
		case_sleep_ms(5);

	case_wait();
	CHECK(getpid() == me && getppid() == parent && getpgrp() == group && getsid(0) == session);
	CHECK(getpgid(shared->member) == leader && getsid(own_session) == own_session &&
	      getpgid(stopped) == group);
	__atomic_store_n(&shared->go, 1, __ATOMIC_SEQ_CST);
	CHECK(waitpid(stopped, &status, WNOHANG) == 0);
	info.si_pid = 0;
	CHECK(waitid(P_PID, (id_t)zombie, &info, WEXITED | WNOWAIT | WNOHANG) == 0 && info.si_pid == zombie &&
	      info.si_status == 34);
	CHECK(status_of(zombie) == 34);
	CHECK(kill(stopped, SIGCONT) == 0 && status_of(stopped) == 35);
	CHECK(status_of(leader) == 32 && status_of(own_session) == 33);
	CHECK(waitpid(-1, &status, 0) == -1 && errno == ECHILD);
	case_pass();
}

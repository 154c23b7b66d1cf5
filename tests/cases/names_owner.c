/* Numbers of owners: of descriptors, locks, terminals, sockets' peers, messages, System V objects,
 * capabilities. */
#include <fcntl.h>
#include <linux/capability.h>
#include <mqueue.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/msg.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>

#include "tests/cases/case.h"

/* A child that does one thing and then waits. */
static pid_t child_that(void (*act)(void *), void *arg)
{
	int fds[2];
	char c;
	pid_t pid;

	CHECK(pipe(fds) == 0);
	pid = fork();
	if (pid == 0) {
		act(arg);
		CHECK(write(fds[1], "", 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(fds[0], &c, 1) == 1);
	close(fds[0]);
	close(fds[1]);
	return pid;
}

static void nothing(void *arg)
{
}

static void end(pid_t pid)
{
	CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
}

static void lead(void *arg)
{
	CHECK(setpgid(0, 0) == 0);
}

static void check_owner(int fd, pid_t leader)
{
	struct f_owner_ex owner = {F_OWNER_PID, leader}, got;

	CHECK(fcntl(fd, F_SETOWN, getpid()) == 0 && fcntl(fd, F_GETOWN) == getpid());
	CHECK(fcntl(fd, F_SETOWN, -leader) == 0);
	CHECK(fcntl(fd, F_GETOWN_EX, &got) == 0 && got.type == F_OWNER_PGRP && got.pid == leader);
	CHECK(fcntl(fd, F_SETOWN_EX, &owner) == 0 && fcntl(fd, F_GETOWN_EX, &got) == 0);
	CHECK(got.type == F_OWNER_PID && got.pid == leader && fcntl(fd, F_GETOWN) == leader);
	owner.type = F_OWNER_TID;
	owner.pid = (pid_t)syscall(SYS_gettid);
	CHECK(fcntl(fd, F_SETOWN_EX, &owner) == 0 && fcntl(fd, F_GETOWN_EX, &got) == 0 &&
	      got.pid == owner.pid);
	CHECK(fcntl(fd, F_SETOWN, 0) == 0 && fcntl(fd, F_GETOWN) == 0);
}

static void check_socket_owner(int fd, pid_t leader)
{
	int owner = -leader, got = 0;

	CHECK(ioctl(fd, FIOSETOWN, &owner) == 0 && ioctl(fd, FIOGETOWN, &got) == 0 && got == -leader);
	owner = leader;
	CHECK(ioctl(fd, SIOCSPGRP, &owner) == 0 && ioctl(fd, SIOCGPGRP, &got) == 0 && got == leader);
}

static void take_lock(void *arg)
{
	struct flock lock = {.l_type = F_WRLCK, .l_start = 10, .l_len = 5};

	CHECK(fcntl(*(int *)arg, F_SETLK, &lock) == 0);
}

static void check_lock(int fd, pid_t holder)
{
	struct flock lock = {.l_type = F_WRLCK, .l_start = 0, .l_len = 100};

	CHECK(fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_WRLCK && lock.l_start == 10 &&
	      lock.l_pid == holder);
	lock = (struct flock){.l_type = F_WRLCK, .l_start = 50, .l_len = 1};
	CHECK(fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK);
	lock = (struct flock){.l_type = F_WRLCK, .l_start = 0, .l_len = 100};
	CHECK(fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_pid == holder);
}

static void use_terminal(int slave)
{
	pid_t pid;
	int group = 0, status;

	CHECK(setsid() == getpid() && ioctl(slave, TIOCSCTTY, 0) == 0);
	CHECK(tcgetsid(slave) == getpid() && tcgetpgrp(slave) == getpid());
	signal(SIGTTOU, SIG_IGN);
	pid = child_that(lead, NULL);
	CHECK(getpgid(pid) == pid && tcsetpgrp(slave, pid) == 0 && tcgetpgrp(slave) == pid);
	CHECK(ioctl(slave, TIOCGPGRP, &group) == 0 && group == pid);
	group = 2147480000;
	CHECK(ioctl(slave, TIOCSPGRP, &group) < 0);
	CHECK(tcsetpgrp(slave, getpid()) == 0);
	CHECK(kill(pid, SIGSTOP) == 0 && waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
	CHECK(kill(pid, SIGCONT) == 0 && waitpid(pid, &status, WCONTINUED) == pid && WIFCONTINUED(status));
	end(pid);
}

static void check_terminal(void)
{
	int master, slave, status;
	pid_t pid;

	CHECK(openpty(&master, &slave, NULL, NULL, NULL) == 0);
	pid = fork();
	if (pid == 0) {
		use_terminal(slave);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	close(master);
	close(slave);
}

struct message {
	struct msghdr head;
	struct iovec data;
	char byte;
	_Alignas(8) char control[CMSG_SPACE(sizeof(struct ucred))];
};

static void prepare(struct message *m, int with_credentials)
{
	struct cmsghdr *c;
	struct ucred cred = {getpid(), getuid(), getgid()};

	memset(m, 0, sizeof(*m));
	m->data = (struct iovec){&m->byte, 1};
	m->head.msg_iov = &m->data;
	m->head.msg_iovlen = 1;
	m->head.msg_control = m->control;
	m->head.msg_controllen = sizeof(m->control);
	c = CMSG_FIRSTHDR(&m->head);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_CREDENTIALS;
	c->cmsg_len = CMSG_LEN(sizeof(cred));
	memcpy(CMSG_DATA(c), &cred, sizeof(cred));
	if (!with_credentials)
		m->head.msg_controllen = 0;
}

static pid_t sender_of(const struct message *m)
{
	const struct cmsghdr *c = CMSG_FIRSTHDR(&m->head);
	struct ucred cred;

	CHECK(c != NULL && c->cmsg_type == SCM_CREDENTIALS);
	memcpy(&cred, CMSG_DATA(c), sizeof(cred));
	return cred.pid;
}

static pid_t receive(int fd)
{
	struct message m;

	prepare(&m, 1);
	CHECK(recvmsg(fd, &m.head, 0) == 1);
	return sender_of(&m);
}

static void check_credentials(void)
{
	int pair[2], on = 1, status;
	socklen_t len = sizeof(struct ucred);
	struct ucred peer;
	struct message m, m2;
	struct mmsghdr many[2];
	pid_t pid;

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	CHECK(getsockopt(pair[0], SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.pid == getpid());
	CHECK(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0);
	CHECK(write(pair[1], "x", 1) == 1 && receive(pair[0]) == getpid());
	prepare(&m, 1);
	CHECK(sendmsg(pair[1], &m.head, 0) == 1 && receive(pair[0]) == getpid());
	prepare(&m, 0);
	prepare(&m2, 1);
	many[0].msg_hdr = m.head;
	many[1].msg_hdr = m2.head;
	status = sendmmsg(pair[1], many, 2, 0);
	CHECK(status >= 1 && many[0].msg_len == 1 && receive(pair[0]) == getpid());
	if (status == 1)
		CHECK(sendmmsg(pair[1], many + 1, 1, 0) == 1);
	CHECK(many[1].msg_len == 1 && receive(pair[0]) == getpid());
	pid = fork();
	if (pid == 0) {
		prepare(&m, 1);
		_exit(sendmsg(pair[1], &m.head, 0) == 1 && write(pair[1], "y", 1) == 1 ? 0 : 1);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	prepare(&m, 1);
	prepare(&m2, 1);
	many[0].msg_hdr = m.head;
	many[1].msg_hdr = m2.head;
	CHECK(recvmmsg(pair[0], many, 2, 0, NULL) == 2);
	m.head = many[0].msg_hdr;
	m2.head = many[1].msg_hdr;
	CHECK(sender_of(&m) == pid && sender_of(&m2) == pid);
	/* only root may use another process's credentials */
	prepare(&m, 1);
	((struct ucred *)CMSG_DATA(CMSG_FIRSTHDR(&m.head)))->pid = 2147480000;
	CHECK(sendmsg(pair[1], &m.head, 0) < 0);
	close(pair[0]);
	close(pair[1]);
}

static void check_sysv(void)
{
	int shm = shmget(IPC_PRIVATE, 4096, 0600), sem = semget(IPC_PRIVATE, 1, 0600),
	    msg = msgget(IPC_PRIVATE, 0600);
	struct {
		long type;
		char text[8];
	} message = {1, "hello"};
	struct sembuf up = {0, 1, 0};
	struct shmid_ds shm_state;
	struct msqid_ds msg_state;
	void *at;

	CHECK(shm >= 0 && sem >= 0 && msg >= 0);
	at = shmat(shm, NULL, 0);
	CHECK(at != (void *)-1);
	CHECK(shmctl(shm, IPC_STAT, &shm_state) == 0 && shm_state.shm_cpid == getpid() &&
	      shm_state.shm_lpid == getpid());
	CHECK(semop(sem, &up, 1) == 0 && semctl(sem, 0, GETPID) == getpid());
	CHECK(msgsnd(msg, &message, sizeof(message.text), 0) == 0);
	CHECK(msgctl(msg, IPC_STAT, &msg_state) == 0 && msg_state.msg_lspid == getpid() &&
	      msg_state.msg_lrpid == 0);
	CHECK(shmdt(at) == 0 && shmctl(shm, IPC_RMID, NULL) == 0 && semctl(sem, 0, IPC_RMID) == 0 &&
	      msgctl(msg, IPC_RMID, NULL) == 0);
}

static void check_message_queue(void)
{
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct timespec limit = {.tv_sec = 10};
	struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 8};
	siginfo_t info;
	sigset_t set, old;
	char name[64];
	mqd_t queue;
	pid_t pid;

	snprintf(name, sizeof(name), "/pbeam-case-%d", getpid());
	queue = mq_open(name, O_RDWR | O_CREAT, 0600, &attr);
	if (queue == (mqd_t)-1)
		return; /* not mounted or not allowed here */
	CHECK(mq_unlink(name) == 0);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	CHECK(sigprocmask(SIG_BLOCK, &set, &old) == 0 && mq_notify(queue, &event) == 0);
	pid = fork();
	if (pid == 0)
		_exit(mq_send(queue, "x", 1, 0) == 0 ? 0 : 1);
	CHECK(sigtimedwait(&set, &info, &limit) == SIGUSR1 && info.si_code == SI_MESGQ && info.si_pid == pid);
	CHECK(waitpid(pid, NULL, 0) == pid && mq_close(queue) == 0 &&
	      sigprocmask(SIG_SETMASK, &old, NULL) == 0);
}

static void check_capabilities(pid_t pid)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, pid};
	struct __user_cap_data_struct data[2];

	CHECK(syscall(SYS_capget, &head, data) == 0);
	head.pid = 2147480000;
	CHECK(syscall(SYS_capget, &head, data) < 0 && errno == ESRCH);
	head.pid = getpid();
	CHECK(syscall(SYS_capget, &head, data) == 0 && syscall(SYS_capset, &head, data) == 0);
}

static void check_all(int file, int socket, pid_t leader, pid_t holder)
{
	check_owner(socket, leader);
	check_socket_owner(socket, leader);
	check_lock(file, holder);
	check_terminal();
	check_credentials();
	check_sysv();
	check_message_queue();
	check_capabilities(leader);
	CHECK(getpriority(PRIO_PGRP, (id_t)leader) == 0 && syscall(SYS_ioprio_get, 2, leader) >= 0);
}

int main(void)
{
	int file = open("names_owner.file", O_RDWR | O_CREAT | O_CLOEXEC, 0600),
	    socket_fd = socket(AF_INET, SOCK_DGRAM, 0);
	pid_t leader = child_that(lead, NULL), holder = child_that(take_lock, &file),
	      other = child_that(nothing, NULL);

	CHECK(file >= 0 && socket_fd >= 0);
	check_all(file, socket_fd, leader, holder);
	CHECK(fcntl(socket_fd, F_SETOWN, -leader) == 0);
	case_wait();
	CHECK(fcntl(socket_fd, F_GETOWN) == -leader);
	check_all(file, socket_fd, leader, holder);
	end(leader);
	end(holder);
	end(other);
	CHECK(unlink("names_owner.file") == 0);
	case_pass();
}

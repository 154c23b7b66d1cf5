/* System V semaphores (values, last process, SEM_UNDO at the end of a process), message queues with
 * messages, shared memory that no process has attached: all of them change all the time while they are
 * saved. */
#include <pthread.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

enum { COUNTER, TAKEN, GIVEN, LAST, NSEMS = 40, TEXT = 100 };

struct text {
	long type;
	char data[TEXT];
};

static int sems, queue, segment;

static void op(int number, int change, int flags)
{
	struct sembuf sop = {(unsigned short)number, (short)change, (short)flags};

	while (semop(sems, &sop, 1) < 0)
		CHECK(errno == EINTR);
}

static void send_text(long type, const char *data, size_t len)
{
	struct text text = {.type = type};

	memcpy(text.data, data, len);
	CHECK(msgsnd(queue, &text, len, 0) == 0);
}

static void expect_text(long type, const char *data, size_t len)
{
	struct text text;

	CHECK(msgrcv(queue, &text, sizeof(text.data), 0, IPC_NOWAIT) == (ssize_t)len);
	CHECK(text.type == type && memcmp(text.data, data, len) == 0);
}

static int value(int number)
{
	return semctl(sems, number, GETVAL);
}

static void *thread(void *arg)
{
	(void)arg;
	pause();
	return NULL;
}

int main(void)
{
	struct semid_ds set;
	struct msqid_ds status;
	int up[2], counter = 0, exit_status;
	pthread_t other;
	char go;

	key_t key = 0x5c000000 + getpid();
	sems = semget(key, NSEMS, IPC_CREAT | IPC_EXCL | 0640);
	queue = msgget(key, IPC_CREAT | IPC_EXCL | 0600);
	segment = shmget(key, 5 * 4096, IPC_CREAT | IPC_EXCL | 0600);
	CHECK(sems >= 0 && queue >= 0 && segment >= 0 && pipe(up) == 0);
	printf("key %d\n", key);
	char *at = shmat(segment, NULL, 0);
	CHECK(at != (char *)-1);
	strcpy(at + 3 * 4096, "in nobody's memory");
	CHECK(shmdt(at) == 0);
	/* The threads share the undo list: the end of one thread undoes nothing. */
	CHECK(pthread_create(&other, NULL, thread, NULL) == 0);
	op(TAKEN, 20, 0);
	op(NSEMS - 1, 7, 0);
	op(LAST, 1, 0);
	pid_t child = fork();
	if (child == 0) {
		op(TAKEN, -9, SEM_UNDO);
		op(GIVEN, 5, SEM_UNDO);
		op(GIVEN, 1, SEM_UNDO);
		op(LAST, 1, 0);
		CHECK(write(up[1], "x", 1) == 1);
		pause();
		_exit(1);
	}
	CHECK(read(up[0], &go, 1) == 1);
	op(TAKEN, -2, SEM_UNDO);
	op(GIVEN, 3, SEM_UNDO);
	CHECK(value(TAKEN) == 9 && value(GIVEN) == 9);
	send_text(3, "three", 5);
	send_text(1, "", 0);
	send_text(2, "two\0two", 7);

	case_ready();
	while (!case_going()) {
		op(COUNTER, 1, 0);
		counter++;
		if (counter % 1000 == 0)
			case_sleep_ms(1);
		if (counter == 30000) {
			op(COUNTER, -30000, 0);
			counter = 0;
		}
	}
	CHECK(semget(key, 0, 0) == sems && msgget(key, 0) == queue && shmget(key, 0, 0) == segment);
	CHECK(value(COUNTER) == counter && value(TAKEN) == 9 && value(GIVEN) == 9 && value(NSEMS - 1) == 7);
	CHECK(semctl(sems, 0, IPC_STAT, &set) == 0 && set.sem_nsems == NSEMS &&
	      (set.sem_perm.mode & 0777) == 0640);
	CHECK(semctl(sems, LAST, GETPID) == child && semctl(sems, TAKEN, GETPID) == getpid());
	CHECK(semctl(sems, COUNTER, GETPID) == (counter ? getpid() : semctl(sems, COUNTER, GETPID)));
	CHECK(pthread_cancel(other) == 0 && pthread_join(other, NULL) == 0);
	CHECK(value(TAKEN) == 9 && value(GIVEN) == 9);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &exit_status, 0) == child);
	CHECK(value(TAKEN) == 18 && value(GIVEN) == 3);
	CHECK(msgctl(queue, IPC_STAT, &status) == 0 && status.msg_qnum == 3);
	expect_text(3, "three", 5);
	expect_text(1, "", 0);
	expect_text(2, "two\0two", 7);
	at = shmat(segment, NULL, 0);
	CHECK(at != (char *)-1 && strcmp(at + 3 * 4096, "in nobody's memory") == 0 && at[0] == 0);
	CHECK(shmdt(at) == 0);
	/* The undo list of this process. */
	child = fork();
	if (child == 0)
		_exit(0);
	CHECK(waitpid(child, &exit_status, 0) == child && value(TAKEN) == 18);
	CHECK(semctl(sems, 0, IPC_RMID) == 0 && msgctl(queue, IPC_RMID, NULL) == 0 &&
	      shmctl(segment, IPC_RMID, NULL) == 0);
	case_pass();
}

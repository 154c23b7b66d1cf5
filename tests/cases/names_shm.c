/* The id of a System V segment that a program has stored means the same segment after a restore creates it
 * again. A segment marked for removal exists only as long as it is attached. */
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

static void check_again(int id, char *first, const char *text)
{
	struct shmid_ds state;
	char *second = shmat(id, NULL, 0);
	pid_t pid;
	int status;

	CHECK(second != (char *)-1 && second != first && strcmp(second, text) == 0);
	CHECK(shmctl(id, IPC_STAT, &state) == 0 && state.shm_segsz == 8192 && state.shm_nattch == 2);
	second[100]++;
	CHECK(first[100] == second[100]);
	CHECK(shmdt(second) == 0);
	pid = fork();
	if (pid == 0) {
		second = shmat(id, NULL, SHM_RDONLY);
		_exit(second != (char *)-1 && strcmp(second, text) == 0 ? 0 : 1);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(shmctl(id, IPC_STAT, &state) == 0 && state.shm_lpid == pid && state.shm_nattch == 1);
}

int main(void)
{
	int id = shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600), other;
	char *at = shmat(id, NULL, 0), *again;

	CHECK(id >= 0 && at != (char *)-1);
	strcpy(at, "kept");
	CHECK(shmctl(id, IPC_RMID, NULL) == 0);
	check_again(id, at, "kept");
	case_wait();
	check_again(id, at, "kept");
	/* a new segment is not mistaken for it */
	other = shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600);
	CHECK(other >= 0 && other != id);
	again = shmat(other, NULL, 0);
	CHECK(again != (char *)-1 && again[0] == 0 && shmctl(other, IPC_RMID, NULL) == 0 &&
	      shmdt(again) == 0);
	CHECK(shmat(other, NULL, 0) == (char *)-1);
	CHECK(shmdt(at) == 0 && shmat(id, NULL, 0) == (char *)-1);
	case_pass();
}

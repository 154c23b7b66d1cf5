/* A pseudo-terminal of the program: settings, size, queued input and output, a session with a foreground
 * group on it. */
#include <fcntl.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

int main(void)
{
	struct winsize size = {.ws_row = 33, .ws_col = 111}, now = {0};
	struct termios settings, then;
	int master, slave, tell[2];
	char back[100];

	CHECK(openpty(&master, &slave, NULL, NULL, &size) == 0 && pipe(tell) == 0);
	CHECK(tcgetattr(slave, &settings) == 0);
	settings.c_lflag &= ~(tcflag_t)(ECHO | ICANON);
	settings.c_cc[VINTR] = 5;
	CHECK(tcsetattr(slave, TCSANOW, &settings) == 0);
	pid_t child = fork();
	if (child == 0) {
		CHECK(setsid() > 0 && ioctl(slave, TIOCSCTTY, 0) == 0);
		pid_t job = fork();
		if (job == 0) {
			CHECK(setpgid(0, 0) == 0);
			pause();
			_exit(1);
		}
		setpgid(job, job);
		signal(SIGTTOU, SIG_IGN);
		CHECK(tcsetpgrp(slave, job) == 0 && write(tell[1], &job, sizeof(job)) == sizeof(job));
		int status;
		CHECK(waitpid(job, &status, 0) == job && WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
		_exit(tcgetpgrp(slave) == job && tcgetsid(slave) == getpid() ? 41 : 1);
	}
	pid_t job;
	CHECK(read(tell[0], &job, sizeof(job)) == sizeof(job));
	CHECK(write(slave, "to the screen", 13) == 13 && write(master, "typed ahead", 11) == 11);
	case_sleep_ms(50);

	case_wait();
	CHECK(tcgetattr(slave, &then) == 0 && then.c_lflag == settings.c_lflag && then.c_cc[VINTR] == 5 &&
	      then.c_iflag == settings.c_iflag);
	CHECK(ioctl(slave, TIOCGWINSZ, &now) == 0 && now.ws_row == 33 && now.ws_col == 111);
	CHECK(read(master, back, sizeof(back)) == 13 && memcmp(back, "to the screen", 13) == 0);
	CHECK(write(master, "\5", 1) == 1); /* interrupts the foreground group */
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 41);
	case_pass();
}

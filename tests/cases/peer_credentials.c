/* SO_PEERCRED of UNIX connections: of pairs, of both ends of a connection between processes, of a
 * connection made afterwards. */
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

static const struct sockaddr_un ours = {.sun_family = AF_UNIX, .sun_path = "of-parent"};
static const struct sockaddr_un theirs = {.sun_family = AF_UNIX, .sun_path = "of-child"};

static int listener(const struct sockaddr_un *name)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	CHECK(fd >= 0 && bind(fd, (const struct sockaddr *)name, sizeof(*name)) == 0 && listen(fd, 4) == 0);
	return fd;
}

static int caller(const struct sockaddr_un *name)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)name, sizeof(*name)) == 0);
	return fd;
}

static pid_t peer_of(int fd)
{
	struct ucred cred = {.pid = -1};
	socklen_t len = sizeof(cred);

	CHECK(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 && cred.uid == getuid());
	return cred.pid;
}

int main(void)
{
	int own = listener(&ours), pair[2], status;
	pid_t parent = getpid(), child;
	char byte;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	child = fork();
	if (child == 0) {
		int mine = listener(&theirs), call = caller(&ours);

		CHECK(write(pair[1], "x", 1) == 1 && read(pair[1], &byte, 1) == 1);
		CHECK(peer_of(call) == parent && peer_of(mine) == getpid() && peer_of(pair[1]) == parent);
		CHECK(accept(mine, NULL, NULL) >= 0 && write(pair[1], "y", 1) == 1);
		CHECK(peer_of(accept(mine, NULL, NULL)) == parent);
		_exit(41);
	}
	CHECK(read(pair[0], &byte, 1) == 1);
	int accepted = accept(own, NULL, NULL), before = caller(&theirs);
	CHECK(peer_of(accepted) == child && peer_of(before) == child && peer_of(pair[0]) == parent);

	case_wait();
	CHECK(peer_of(accepted) == child && peer_of(before) == child && peer_of(pair[0]) == parent &&
	      peer_of(own) == parent);
	CHECK(write(pair[0], "z", 1) == 1 && read(pair[0], &byte, 1) == 1);
	CHECK(peer_of(caller(&theirs)) == child);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 41);
	CHECK(unlink(ours.sun_path) == 0 && unlink(theirs.sun_path) == 0);
	case_pass();
}

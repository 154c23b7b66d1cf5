/* Makes channels: starts the process that speaks TLS, and exchanges greetings. */
#include "channel/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "channel/tls.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"

enum { LOCAL_BUFFER = 1 << 20, GREETING_S = 12 };

/* In the child: closes everything but the two sockets, which become descriptors 3 and 4. */
static _Noreturn void become_pump(int tcp, int local, const struct channel_key *key, enum tls_role role)
{
	struct channel_key copy = *key;
	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN); /* Ctrl-C ends a daemon in the foreground; its channels may be in use by
				    other processes */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	tcp = fcntl(tcp, F_DUPFD, 16);
	local = fcntl(local, F_DUPFD, 16);
	if (tcp < 0 || local < 0 || dup2(tcp, 3) < 0 || dup2(local, 4) < 0)
		_exit(1);
	close_range(5, ~0u, 0);
	if (chdir("/") < 0)
		_exit(1);
	prctl(PR_SET_NAME, "pbeam-channel");
	prctl(PR_SET_DUMPABLE, 0);
	pump_run(3, 4, &copy, role);
}

static void widen_buffer(int sock)
{
	const int size = LOCAL_BUFFER;

	if (setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) < 0)
		return; /* small messages are slower without it */
}

/* Takes ownership of `tcp`. Returns the plain end of the channel or -errno. */
static int start_pump(int tcp, const struct channel_key *key, enum tls_role role, struct err *err)
{
	auto_close int ours = -1, theirs = -1, connection = tcp;
	int ends[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return err_sys(err, "make a channel");
	ours = ends[0];
	theirs = ends[1];
	widen_buffer(ours);
	widen_buffer(theirs);
	child = fork();
	if (child < 0)
		return err_sys(err, "start a process for a channel");
	if (child == 0)
		become_pump(connection, theirs, key, role);
	return steal_fd(&ours);
}

int channel_accept(int tcp, const struct channel_key *key, struct err *err)
{
	if (fcntl(tcp, F_SETFL, O_NONBLOCK) < 0) {
		close(tcp);
		return err_sys(err, "accept a channel");
	}
	address_tune(tcp);
	return start_pump(tcp, key, TLS_SERVER, err);
}

static int send_hello(int sock, const char *own_host, uint32_t kind, const uint8_t *cookie, struct err *err)
{
	Pbeam__ChannelHello hello = PBEAM__CHANNEL_HELLO__INIT;

	hello.version = CHANNEL_VERSION;
	hello.kind = (Pbeam__ChannelKind)kind;
	hello.host = (char *)(uintptr_t)own_host;
	hello.program = (char *)(uintptr_t) "pbeam " PBEAM_VERSION;
	if (cookie) {
		hello.cookie.data = (uint8_t *)(uintptr_t)cookie;
		hello.cookie.len = CHANNEL_COOKIE_SIZE;
	}
	return frame_send(sock, PBEAM__CHANNEL_MESSAGE__CHANNEL_HELLO, &hello.base, NULL, 0, err);
}

int channel_welcome(int sock, const char *own_host, struct err *err)
{
	return send_hello(sock, own_host, PBEAM__CHANNEL_KIND__CHANNEL_NONE, NULL, err);
}

int channel_check_hello(const struct frame *frame, const char *own_host, Pbeam__ChannelHello **out,
			struct err *err)
{
	Pbeam__ChannelHello *hello;
	int r = 0;

	*out = NULL;
	if (frame->type == PBEAM__RPC__RPC_FAILED) {
		Pbeam__Failed *refused =
			(Pbeam__Failed *)frame_unpack(frame, &pbeam__failed__descriptor, err);

		if (!refused)
			return -EPROTO;
		r = err_set(err, refused->code < 0 ? refused->code : -EPROTO, "%s", refused->text);
		message_free(refused);
		return r;
	}
	if (frame->type != PBEAM__CHANNEL_MESSAGE__CHANNEL_HELLO)
		return err_set(err, -EPROTO, "unexpected message %u instead of a greeting", frame->type);
	hello = (Pbeam__ChannelHello *)frame_unpack(frame, &pbeam__channel_hello__descriptor, err);
	if (!hello)
		return -EPROTO;
	if (hello->version != CHANNEL_VERSION)
		r = err_set(
			err, -EPROTONOSUPPORT,
			"it speaks version %u between hosts, %s version %u; install the same version on both",
			hello->version, own_host, CHANNEL_VERSION);
	else if (!channel_host_ok(hello->host))
		r = err_set(err, -EPROTO, "invalid host name in its greeting");
	else if (!strcmp(hello->host, own_host))
		r = err_set(err, -EADDRINUSE,
			    "it has the same name as this host, %s; give one of them another --host-name",
			    own_host);
	if (r < 0)
		message_free(hello);
	else
		*out = hello;
	return r;
}

bool channel_host_ok(const char *name)
{
	size_t n = strlen(name);

	if (n == 0 || n >= CHANNEL_HOST_MAX || name[0] == '-' || name[0] == '.')
		return false;
	return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._") == n;
}

static int exchange_greetings(int sock, const char *own_host, uint32_t kind, const uint8_t *cookie,
			      char host[CHANNEL_HOST_MAX], struct err *err)
{
	Pbeam__ChannelHello *hello;
	struct frame frame;
	int r;

	rpc_set_timeout(sock, GREETING_S * 1000);
	r = send_hello(sock, own_host, kind, cookie, NULL);
	if (r < 0 && r != -EPIPE && r != -ECONNRESET) /* the peer's reason can then be read */
		return err_code(err, r, "greet");
	r = frame_recv(sock, &frame, err);
	if (r <= 0)
		return r < 0 ? r : err_set(err, -ECONNRESET, "it closed the connection");
	r = channel_check_hello(&frame, own_host, &hello, err);
	frame_free(&frame);
	if (r < 0)
		return r;
	if (host)
		strcpy(host, hello->host);
	message_free(hello);
	rpc_set_timeout(sock, 0);
	return 0;
}

int channel_connect(const char *address, const struct channel_key *key, const char *own_host, uint32_t kind,
		    const uint8_t *cookie, char host[CHANNEL_HOST_MAX], struct err *err)
{
	auto_close int sock = -1;
	int r = address_connect(address, err);

	if (r >= 0)
		r = sock = start_pump(r, key, TLS_CLIENT, err);
	if (r < 0)
		return r;
	r = exchange_greetings(sock, own_host, kind, cookie, host, err);
	if (r < 0)
		return err_wrap(err, r, "%s", address);
	return steal_fd(&sock);
}

/* Listens on and connects to "ADDRESS[:PORT]", "[V6]:PORT" or "unix:PATH". */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/parse.h"
#include "channel/tls.h"

enum { CONNECT_MS = 5000, BACKLOG = 128 };
/* A connection whose peer does not respond is closed after about six seconds, busy or idle. */
enum { KEEPALIVE_IDLE_S = 2, KEEPALIVE_EVERY_S = 1, KEEPALIVE_COUNT = 4, UNACKNOWLEDGED_MS = 6000 };

/* ---- UNIX sockets ---- */

#define UNIX_PREFIX "unix:"

bool channel_address_is_unix(const char *address)
{
	return strncmp(address, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0;
}

static int unix_address(const char *text, struct sockaddr_un *address, struct err *err)
{
	const char *path = text + strlen(UNIX_PREFIX);

	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	if (path[0] != '/')
		return err_set(err, -EINVAL, "%s is not an address; write unix:/PATH", text);
	if (strlen(path) >= sizeof(address->sun_path))
		return err_set(err, -ENAMETOOLONG, "%s: a path of a socket has at most %zu bytes", text,
			       sizeof(address->sun_path) - 1);
	strcpy(address->sun_path, path);
	return 0;
}

static int unix_connect(const char *text, struct err *err)
{
	auto_close int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un address;
	int r = unix_address(text, &address, err);

	if (r < 0)
		return r;
	if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof(address)) < 0)
		return err_sys(err, "connect to %s", text);
	return steal_fd(&sock);
}

/* The socket of a killed daemon refuses connections, and is replaced. */
static int unix_listen(const char *text, struct err *err)
{
	auto_close int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	auto_close int other = -1;
	struct sockaddr_un address;
	struct stat st;
	int r = unix_address(text, &address, err);

	if (r < 0)
		return r;
	if (stat(address.sun_path, &st) == 0 && S_ISSOCK(st.st_mode)) {
		other = unix_connect(text, NULL);
		if (other == -ECONNREFUSED)
			(void)!unlink(address.sun_path);
	}
	/* The mode that bind() gives the file (unix_bind_bsd() in net/unix/af_unix.c). */
	if (sock < 0 || fchmod(sock, 0600) < 0 ||
	    bind(sock, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(sock, BACKLOG) < 0)
		return err_sys(err, "listen on %s", text);
	return steal_fd(&sock);
}

/* ---- TCP ---- */

/* Splits an address into host and port. An IPv6 address without a port needs no brackets. */
static int split_address(const char *text, char host[256], char port[8], struct err *err)
{
	const char *end, *colon;
	uint64_t number = CHANNEL_PORT;

	if (text[0] == '[') {
		end = strchr(text, ']');
		if (!end || (end[1] && end[1] != ':'))
			return err_set(err, -EINVAL,
				       "%s is not an address; write ADDRESS[:PORT] or [V6]:PORT", text);
		colon = end[1] ? end + 1 : NULL;
		text++;
	} else {
		colon = strchr(text, ':');
		if (colon && strchr(colon + 1, ':'))
			colon = NULL;
		end = colon ? colon : text + strlen(text);
	}
	if (end == text || end - text >= 256)
		return err_set(err, -EINVAL, "`%s` contains no address", text);
	if (colon && parse_number(colon + 1, 1, 65535, &number, NULL) < 0)
		return err_set(err, -EINVAL, "`%s` is not a port", colon + 1);
	memcpy(host, text, (size_t)(end - text));
	host[end - text] = 0;
	snprintf(port, 8, "%u", (unsigned)number);
	return 0;
}

static int resolve_address(const char *text, int flags, struct addrinfo **out, struct err *err)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
	char host[256], port[8];
	int r = split_address(text, host, port, err);

	if (r < 0)
		return r;
	r = getaddrinfo(host, port, &hints, out);
	if (r != 0)
		return err_set(err, -EADDRNOTAVAIL, "address %s: %s", text, gai_strerror(r));
	return 0;
}

void address_tune(int tcp)
{
	const struct {
		int level, name, value;
	} options[] = {
		{SOL_SOCKET, SO_KEEPALIVE, 1},
		{IPPROTO_TCP, TCP_NODELAY, 1},
		{IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
		{IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_EVERY_S},
		{IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT},
		{IPPROTO_TCP, TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS},
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (setsockopt(tcp, options[i].level, options[i].name, &options[i].value, sizeof(int)) < 0)
			continue; /* a kernel without this option notices a broken link later */
}

/* Returns the descriptor or -errno. */
static int try_connect(const struct addrinfo *to)
{
	auto_close int sock = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int r = sock < 0 ? -errno : io_connect(sock, to->ai_addr, to->ai_addrlen, CONNECT_MS);

	return r < 0 ? r : steal_fd(&sock);
}

int address_connect(const char *address, struct err *err)
{
	struct addrinfo *all;
	int r;

	if (channel_address_is_unix(address))
		return unix_connect(address, err);
	r = resolve_address(address, 0, &all, err);
	if (r < 0)
		return r;
	r = -EADDRNOTAVAIL;
	for (const struct addrinfo *a = all; a && r < 0; a = a->ai_next)
		r = try_connect(a);
	freeaddrinfo(all);
	if (r < 0)
		return err_code(err, r, "connect to %s", address);
	address_tune(r);
	return r;
}

int channel_listen(const char *address, struct err *err)
{
	const int yes = 1;
	auto_close int sock = -1;
	struct addrinfo *all;
	int r;

	if (channel_address_is_unix(address))
		return unix_listen(address, err);
	r = resolve_address(address, AI_PASSIVE, &all, err);
	if (r < 0)
		return r;
	sock = socket(all->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (sock < 0 || setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
	    bind(sock, all->ai_addr, all->ai_addrlen) < 0 || listen(sock, BACKLOG) < 0)
		r = err_sys(err, "listen on %s", address);
	freeaddrinfo(all);
	return r < 0 ? r : steal_fd(&sock);
}

void channel_peer_name(int tcp, char *text, size_t size)
{
	struct sockaddr_storage peer;
	socklen_t len = sizeof(peer);
	char host[INET6_ADDRSTRLEN + 16], port[8];

	if (getpeername(tcp, (struct sockaddr *)&peer, &len) == 0 && peer.ss_family == AF_UNIX)
		snprintf(text, size, "a local socket");
	else if (getnameinfo((struct sockaddr *)&peer, len, host, sizeof(host), port, sizeof(port),
			     NI_NUMERICHOST | NI_NUMERICSERV) != 0)
		snprintf(text, size, "unknown address");
	else
		snprintf(text, size, peer.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

/*
 * Two ends of a TCP connection that check every byte: each sends a random stream and knows the other's.
 *
 *     stream listen ADDRESS PORT [OPTION...]      accepts one connection
 *     stream connect ADDRESS PORT [OPTION...]
 *
 *     how=block
 * poll
 * select
 * epoll
 * edge   how they wait (block: a thread for each direction)
 *     send=BYTES   sends so much, then shuts down; without it until the file $GO exists
 *     late=1       reads only once the file $GO exists: the queues are full until then
 *     pace=US      sleeps so long between pieces
 *     tell=1       prints a line for each correct MiB: "at N"
 *     memory=MIB   writes so much memory meanwhile, page by page, and verifies it
 *     children=1   a child gets the connection; the parent keeps a duplicate
 *
 * Prints "ready", at its end "sent N received M NAME PEER" (from getsockname and getpeername). Exit status 0:
 * all correct. Anything that a program would not see without migration (an error, EINTR, a wrong byte,
 * changed names) is a failure.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIECE 65536

static struct {
	const char *how;
	uint64_t send;
	int late, children, tell;
	unsigned pace, memory;
} option = {.how = "block"};

static int sock;
static uint64_t sent, received, seed_out, seed_in;

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
	int error = errno;
	va_list ap;

	va_start(ap, format);
	printf("failed: ");
	vprintf(format, ap);
	printf(" (%s); sent %llu received %llu\n", strerror(error), (unsigned long long)sent,
	       (unsigned long long)received);
	va_end(ap);
	fflush(stdout);
	_exit(1);
}

static int going(void)
{
	const char *go = getenv("GO");

	return !go || access(go, F_OK) == 0;
}

/* Word number n of a stream. */
static uint64_t word(uint64_t seed, uint64_t n)
{
	uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static void make(uint64_t seed, uint64_t at, unsigned char *out, size_t len)
{
	for (size_t i = 0; i < len;) {
		uint64_t w = word(seed, (at + i) / 8);

		for (unsigned k = (at + i) % 8; k < 8 && i < len; k++, i++)
			out[i] = (unsigned char)(w >> (8 * k));
	}
}

static void check(const unsigned char *data, size_t len)
{
	static __thread unsigned char right[PIECE];

	make(seed_in, received, right, len);
	for (size_t i = 0; i < len; i++)
		if (data[i] != right[i])
			fail("byte %llu is %u, not %u", (unsigned long long)(received + i), data[i],
			     right[i]);
	if (option.tell && (received + len) >> 20 != received >> 20) {
		printf("at %llu\n", (unsigned long long)(received + len) >> 20);
		fflush(stdout);
	}
	received += len;
}

/* Returns how much of the next piece to send; 0: no more. */
static size_t next_piece(void)
{
	uint64_t left;

	if (!option.send)
		return going() ? 0 : PIECE;
	left = option.send - sent;
	return left < PIECE ? left : PIECE;
}

/* Sends once. 1: sent some bytes, 0: all is sent and shut down, -1: not now. */
static int send_some(int flags)
{
	static unsigned char piece[PIECE];
	size_t len = next_piece();
	ssize_t n;

	if (len == 0) {
		if (shutdown(sock, SHUT_WR) < 0)
			fail("shutdown");
		return 0;
	}
	make(seed_out, sent, piece, len);
	n = send(sock, piece, len, flags | MSG_NOSIGNAL);
	if (n < 0 && errno == EAGAIN && flags)
		return -1;
	if (n <= 0)
		fail("send");
	if (!flags && (size_t)n != len)
		fail("send took %zd of %zu", n, len);
	sent += (uint64_t)n;
	if (option.pace)
		usleep(option.pace);
	return 1;
}

/* Receives once; the same results. */
static int receive_some(int flags)
{
	static unsigned char piece[PIECE];
	ssize_t n = recv(sock, piece, sizeof(piece), flags);

	if (n < 0 && errno == EAGAIN && flags)
		return -1;
	if (n < 0)
		fail("recv");
	check(piece, (size_t)n);
	return n > 0;
}

/* The other thread: checks the first and last word of every page. */
static void *use_memory(void *unused)
{
	size_t n = (size_t)option.memory << 8, words = 512;
	uint64_t *stamps = calloc(n, sizeof(*stamps));
	uint64_t *pages = mmap(NULL, n << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (!stamps || pages == MAP_FAILED)
		fail("memory");
	for (size_t i = 0; i < n * words; i++)
		pages[i] = word(3, i);
	for (size_t i = 0; i < n; i++)
		pages[i * words] = pages[i * words + words - 1] = stamps[i];
	for (uint64_t step = 0;; step++) {
		size_t i = (size_t)(word(4, step) % n);

		if (pages[i * words] != stamps[i] || pages[i * words + words - 1] != stamps[i])
			fail("page %zu of the memory is not as it was", i);
		pages[i * words] = pages[i * words + words - 1] = stamps[i] = word(5, step);
		usleep(100);
	}
	return unused;
}

static void *writer(void *unused)
{
	while (send_some(0) > 0)
		;
	return unused;
}

static void run_blocking(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, writer, NULL) != 0)
		fail("pthread_create");
	while (option.late && !going())
		usleep(20000);
	while (receive_some(0) > 0)
		;
	pthread_join(thread, NULL);
}

/* Returns the directions to wait for: 1 receiving, 2 sending; -1 when both are done. */
static int wait_poll(int what, int limit)
{
	struct pollfd p = {.fd = sock, .events = (short)((what & 1 ? POLLIN : 0) | (what & 2 ? POLLOUT : 0))};
	int n = poll(&p, 1, limit);

	if (n != 1)
		fail("poll gives %d", n);
	if (p.revents & (POLLERR | POLLNVAL))
		fail("poll says %x", (unsigned)p.revents);
	return (p.revents & (POLLIN | POLLHUP) ? 1 : 0) | (p.revents & POLLOUT ? 2 : 0);
}

static int wait_select(int what, int unused)
{
	struct timeval limit = {.tv_sec = 60};
	fd_set in, out;
	int n;

	FD_ZERO(&in);
	FD_ZERO(&out);
	if (what & 1)
		FD_SET(sock, &in);
	if (what & 2)
		FD_SET(sock, &out);
	n = select(sock + 1, &in, &out, NULL, &limit);
	if (n < 1)
		fail("select gives %d", n);
	return (FD_ISSET(sock, &in) ? 1 : 0) | (FD_ISSET(sock, &out) ? 2 : 0);
}

static int epoll = -1;

static int wait_epoll(int what, int limit)
{
	static int watched = -1;
	int edge = !strcmp(option.how, "edge"), n;
	struct epoll_event event = {.events = edge ? EPOLLIN | EPOLLOUT | EPOLLET
						   : (what & 1 ? EPOLLIN : 0u) | (what & 2 ? EPOLLOUT : 0u),
				    .data.u64 = 0x123456789abcdefull};

	if (watched < 0 || (!edge && watched != what)) {
		if (epoll_ctl(epoll, watched < 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, sock, &event) < 0)
			fail("epoll_ctl");
		watched = what;
	}
	n = epoll_wait(epoll, &event, 1, limit);
	if (n == 0 && limit == 0)
		return 0;
	if (n != 1 || event.data.u64 != 0x123456789abcdefull)
		fail("epoll_wait gives %d, data %llx", n, (unsigned long long)event.data.u64);
	if (event.events & EPOLLERR)
		fail("epoll says %x", event.events);
	return (event.events & (EPOLLIN | EPOLLHUP) ? 1 : 0) | (event.events & EPOLLOUT ? 2 : 0);
}

/* Does what is possible in both directions. Edge-triggered: until both would block, and neither direction
 * delays the other. */
static int do_ready(int ready, int open, int edge)
{
	int done = 0, r;

	if (ready & open & 1) {
		r = receive_some(MSG_DONTWAIT);
		if (r <= 0 || !edge)
			done |= 1;
		if (r == 0)
			done |= 16;
	}
	if (ready & open & 2) {
		r = send_some(MSG_DONTWAIT);
		if (r <= 0 || !edge)
			done |= 2;
		if (r == 0)
			done |= 32;
	}
	return done;
}

static void run_events(int (*wait)(int, int))
{
	int edge = !strcmp(option.how, "edge"), open = 3, ready = 0;

	if (fcntl(sock, F_SETFL, fcntl(sock, F_GETFL) | O_NONBLOCK) < 0)
		fail("fcntl");
	epoll = epoll_create1(EPOLL_CLOEXEC);
	/* Late: only sends, and does not wait forever for room. */
	while (option.late && !going()) {
		int r = open & 2 ? send_some(MSG_DONTWAIT) : -1;

		if (r == 0)
			open &= ~2;
		if (r < 0)
			usleep(20000);
	}
	while (open) {
		int done;

		ready |= wait(open, ready & open ? 0 : 60000);
		done = do_ready(ready, open, edge);
		ready &= ~done;
		open &= ~(done >> 4);
	}
}

static void name_text(int peer, char *out)
{
	struct sockaddr_in name;
	socklen_t len = sizeof(name);
	char text[INET_ADDRSTRLEN];

	if ((peer ? getpeername : getsockname)(sock, (struct sockaddr *)&name, &len) < 0) {
		strcpy(out, "-");
		return;
	}
	sprintf(out, "%s:%u", inet_ntop(AF_INET, &name.sin_addr, text, sizeof(text)), ntohs(name.sin_port));
}

static void take_option(const char *text)
{
	if (!strncmp(text, "how=", 4))
		option.how = text + 4;
	else if (!strncmp(text, "send=", 5))
		option.send = strtoull(text + 5, NULL, 10);
	else if (!strncmp(text, "late=", 5))
		option.late = atoi(text + 5);
	else if (!strncmp(text, "pace=", 5))
		option.pace = (unsigned)atoi(text + 5);
	else if (!strncmp(text, "tell=", 5))
		option.tell = atoi(text + 5);
	else if (!strncmp(text, "memory=", 7))
		option.memory = (unsigned)atoi(text + 7);
	else if (!strncmp(text, "children=", 9))
		option.children = atoi(text + 9);
	else
		fail("option %s", text);
}

static void open_connection(int listening, const char *address, const char *port)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (inet_pton(AF_INET, address, &at.sin_addr) != 1)
		fail("address %s", address);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (listening) {
		if (bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 5) < 0)
			fail("listen");
		printf("listening\n");
		fflush(stdout);
		sock = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
		if (sock < 0)
			fail("accept");
	} else {
		for (int i = 0; connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0; i++) {
			if (errno != ECONNREFUSED || i > 200)
				fail("connect");
			usleep(20000);
		}
		sock = fd;
	}
}

int main(int argc, char **argv)
{
	char name[2][64], peer[2][64];
	int listening = argc > 3 && !strcmp(argv[1], "listen"), status = 0;
	pthread_t memory;
	pid_t child = 0;

	if (argc < 4)
		return 2;
	for (int i = 4; i < argc; i++)
		take_option(argv[i]);
	seed_out = listening ? 1 : 2;
	seed_in = listening ? 2 : 1;
	open_connection(listening, argv[2], argv[3]);
	name_text(0, name[0]);
	name_text(1, peer[0]);
	if (option.memory && pthread_create(&memory, NULL, use_memory, NULL) != 0)
		fail("pthread_create");
	printf("ready\n");
	fflush(stdout);
	if (option.children) {
		child = fork();
		if (child) {
			if (waitpid(child, &status, 0) != child)
				fail("waitpid");
			return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
		}
	}
	if (!strcmp(option.how, "block"))
		run_blocking();
	else
		run_events(!strcmp(option.how, "poll")	   ? wait_poll
			   : !strcmp(option.how, "select") ? wait_select
							   : wait_epoll);
	name_text(0, name[1]);
	name_text(1, peer[1]);
	if (strcmp(name[0], name[1]) != 0 && !getenv("ANY_NAME"))
		fail("its name was %s and is %s", name[0], name[1]);
	if (strcmp(peer[0], peer[1]) != 0 && strcmp(peer[1], "-") != 0 && !getenv("ANY_NAME"))
		fail("its peer's name was %s and is %s", peer[0], peer[1]);
	printf("sent %llu received %llu %s %s\n", (unsigned long long)sent, (unsigned long long)received,
	       name[0], peer[0]);
	fflush(stdout);
	return 0;
}

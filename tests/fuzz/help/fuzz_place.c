#include "tests/fuzz/help/fuzz_place.h"

#include <fcntl.h>
#include <ftw.h>
#include <linux/landlock.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "proto/message.h"

#define TOP "/tmp/pbeam-fuzz-XXXXXX"
#define WRITES                                                                                               \
	(LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |    \
	 LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |          \
	 LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK |       \
	 LANDLOCK_ACCESS_FS_MAKE_SYM)

static char top_dir[] = TOP, place[sizeof(TOP) + 8], runtime[sizeof(TOP) + 8];

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	if (at->level > 0 || !st)
		(void)!remove(path);
	return 0;
}

void fuzz_place_clean(void)
{
	nftw(place, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static void remove_top(void)
{
	nftw(top_dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
	rmdir(top_dir);
}

const char *fuzz_place(void)
{
	return place;
}

static void allow(int rules, const char *path, uint64_t access)
{
	struct landlock_path_beneath_attr below = {.allowed_access = access,
						   .parent_fd = open(path, O_PATH | O_CLOEXEC)};

	if (below.parent_fd < 0)
		return;
	syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0);
	close(below.parent_fd);
}

/* Reading stays free. Where the kernel has no Landlock the paths are kept inside all the same. */
static void confine(int argc, char **argv)
{
	const struct landlock_ruleset_attr attr = {.handled_access_fs = WRITES};
	int rules = (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);
	char prefix[4096];

	if (rules < 0)
		return;
	/* The parent of a merge runs no input, and its children have directories of their own. */
	for (int i = 1; i < argc; i++)
		if (!strncmp(argv[i], "-merge=", strlen("-merge="))) {
			close(rules);
			return;
		}
	allow(rules, top_dir, WRITES);
	allow(rules, "/dev", LANDLOCK_ACCESS_FS_WRITE_FILE);
	allow(rules, "/proc", LANDLOCK_ACCESS_FS_WRITE_FILE);
	for (int i = 1; i < argc; i++) {
		const char *equals = strchr(argv[i], '=');
		char *slash;

		snprintf(prefix, sizeof(prefix), "%s", equals ? equals + 1 : argv[i]);
		slash = strrchr(prefix, '/');
		if (equals && slash)
			*slash = 0; /* of -artifact_prefix=DIR/NAME and the like */
		allow(rules, prefix, WRITES);
	}
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
		syscall(SYS_landlock_restrict_self, rules, 0);
	close(rules);
}

static void write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd >= 0) {
		(void)!write(fd, text, strlen(text));
		close(fd);
	}
}

static void raise_loopback(void)
{
	struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (sock >= 0) {
		ioctl(sock, SIOCSIFFLAGS, &request);
		close(sock);
	}
}

/* A network and System V name space of its own, where that is allowed. */
static void leave_host(void)
{
	char map[64];
	uid_t uid = getuid();
	gid_t gid = getgid();

	if (unshare(CLONE_NEWNET | CLONE_NEWIPC) == 0) {
		raise_loopback();
		return;
	}
	if (unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWIPC) < 0)
		return;
	write_file("/proc/self/setgroups", "deny");
	snprintf(map, sizeof(map), "%u %u 1", uid, uid);
	write_file("/proc/self/uid_map", map);
	snprintf(map, sizeof(map), "%u %u 1", gid, gid);
	write_file("/proc/self/gid_map", map);
	raise_loopback();
}

void fuzz_place_open(int argc, char **argv)
{
	if (!mkdtemp(top_dir))
		abort();
	snprintf(place, sizeof(place), "%s/in", top_dir);
	snprintf(runtime, sizeof(runtime), "%s/run", top_dir);
	if (mkdir(place, 0700) < 0 || mkdir(runtime, 0700) < 0 || setenv("XDG_RUNTIME_DIR", runtime, 1) < 0 ||
	    setenv("XDG_STATE_HOME", runtime, 1) < 0 || setenv("HOME", place, 1) < 0)
		abort();
	log_open("fuzz", "/dev/null");
	atexit(remove_top);
	leave_host();
	confine(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGIO, SIG_IGN);
	signal(SIGURG, SIG_IGN);
	umask(077);
}

/* ---- paths ---- */

/* Keeps the length of the rest: "/etc/x" becomes PLACE "/etc/x", and ".." becomes "__". */
static void keep_inside(ProtobufCBinaryData *value)
{
	const size_t top = strlen(place);
	uint8_t *fresh;

	if (!value->len || value->data[0] != '/' || (value->len > top && !memcmp(value->data, place, top)))
		return;
	fresh = malloc(top + value->len);
	if (!fresh)
		abort();
	memcpy(fresh, place, top);
	memcpy(fresh + top, value->data, value->len);
	free(value->data);
	value->data = fresh;
	value->len += top;
}

static void hide_dots(uint8_t *data, size_t len)
{
	for (size_t i = 0; i + 1 < len; i++)
		if (data[i] == '.' && data[i + 1] == '.')
			data[i] = data[i + 1] = '_';
}

static void keep_text(char **text, const ProtobufCFieldDescriptor *field)
{
	ProtobufCBinaryData bytes;

	if (!*text || **text != '/' || *text == (const char *)field->default_value)
		return;
	bytes = (ProtobufCBinaryData){strlen(*text) + 1, (uint8_t *)*text};
	keep_inside(&bytes);
	hide_dots(bytes.data, bytes.len);
	*text = (char *)bytes.data;
}

static int keep_fields(void *arg, ProtobufCMessage *message)
{
	for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
		void *value = (char *)message + field->offset;

		if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) || field->label == PROTOBUF_C_LABEL_REPEATED)
			continue;
		if (field->type == PROTOBUF_C_TYPE_STRING) {
			keep_text(value, field);
		} else if (field->type == PROTOBUF_C_TYPE_BYTES) {
			ProtobufCBinaryData *bytes = value;

			keep_inside(bytes);
			hide_dots(bytes->data, bytes->len);
		}
	}
	return 0;
}

void fuzz_place_keep_paths(ProtobufCMessage *message)
{
	(void)!message_walk(message, keep_fields, NULL);
}

bool fuzz_place_socket(const uint8_t *data, size_t size, int ends[2])
{
	const int room = 4 << 20;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
		return false;
	setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	if (size && write(ends[0], data, size) != (ssize_t)size) {
		close(ends[0]);
		close(ends[1]);
		return false;
	}
	shutdown(ends[0], SHUT_WR);
	return true;
}

void fuzz_place_limit_files(uint64_t size)
{
	const struct rlimit limit = {size, size};

	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &limit);
}

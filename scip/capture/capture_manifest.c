/* Describes the host, the console and the numbers of processes that are not saved. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/page.h"
#include "base/u64_map.h"
#include "proto/message.h"
#include "scip/capture/capture.h"
#include "scip/tracee/regs.h"
#include "scip/tracee/vdso.h"

enum { CPUINFO_MAX = 4 << 20 };

/* Returns a copy of the value of the first "key<tabs>: value" line, or NULL. */
static char *cpuinfo_field(const char *text, const char *key)
{
	const char *line = strstr(text, key), *colon = line ? strchr(line, ':') : NULL;

	if (!colon)
		return NULL;
	colon += 1 + (colon[1] == ' ');
	return strndup(colon, strcspn(colon, "\n"));
}

static int describe_cpu(Pbeam__Host *host, struct err *err)
{
	auto_free char *text = NULL, *model = NULL, *flags = NULL;
	char *word, *rest = NULL;
	int r = io_slurp(AT_FDCWD, "/proc/cpuinfo", CPUINFO_MAX, &text, NULL);

	if (r < 0)
		return err_code(err, r, "read /proc/cpuinfo");
	model = cpuinfo_field(text, "model name");
	flags = cpuinfo_field(text, "flags");
	if (!flags)
		return err_set(err, -EINVAL, "/proc/cpuinfo names no flags");
	host->xcr0 = strstr(flags, "xsave") ? regs_xcr0() : 0;
	for (word = strtok_r(flags, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
		char **list = reallocarray(host->cpu_flags, host->n_cpu_flags + 1, sizeof(char *));

		if (!list)
			return -ENOMEM;
		host->cpu_flags = list;
		list[host->n_cpu_flags] = strdup(word);
		if (!list[host->n_cpu_flags])
			return -ENOMEM;
		host->n_cpu_flags++;
	}
	return message_text(&host->cpu_model, model ? model : "");
}

static int describe_host(Pbeam__Host *host, struct err *err)
{
	auto_free char *boot = NULL;
	struct utsname name;
	const void *vdso;
	size_t len;
	int r;

	if (uname(&name) < 0)
		return err_sys(err, "uname");
	r = io_slurp(AT_FDCWD, "/proc/sys/kernel/random/boot_id", PAGE, &boot, NULL);
	if (r < 0)
		return err_code(err, r, "read the boot id");
	boot[strcspn(boot, "\n")] = '\0';
	host->page_size = (uint32_t)sysconf(_SC_PAGESIZE);
	if (message_string(&host->name, name.nodename) < 0 ||
	    message_string(&host->kernel, name.release) < 0 ||
	    message_string(&host->machine, name.machine) < 0 || message_string(&host->boot_id, boot) < 0)
		return -ENOMEM;
	vdso = vdso_bytes(&len);
	if (message_bytes(&host->vdso, vdso, len) < 0)
		return -ENOMEM;
	return describe_cpu(host, err);
}

int capture_describe_host(struct names *names, Pbeam__Manifest *manifest, struct err *err)
{
	char place[NAME_TEXT_MAX] = "";

	manifest->format = IMAGE_FORMAT;
	manifest->created_ns = io_now_ns(CLOCK_REALTIME);
	manifest->boottime_ns = io_now_ns(CLOCK_BOOTTIME);
	manifest->monotonic_ns = io_now_ns(CLOCK_MONOTONIC);
	manifest->uid = getuid();
	manifest->gid = getgid();
	manifest->host = message_new(&pbeam__host__descriptor);
	if (names)
		(void)names_cluster(names, place);
	if (!manifest->host || message_string(&manifest->writer, "scip " PBEAM_VERSION) < 0 ||
	    message_string(&manifest->host->place, place) < 0)
		return -ENOMEM;
	return describe_host(manifest->host, err);
}

/* Describes a standard stream, so that a restore without a console can open its like. */
static int describe_stream(Pbeam__ConsoleStream *out, int fd)
{
	char link[64], path[PATH_MAX];
	struct stat st;

	out->kind = PBEAM__CONSOLE_STREAM__KIND__CLOSED;
	if (fd < 0 || fstat(fd, &st) < 0)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (isatty(fd)) {
		out->kind = PBEAM__CONSOLE_STREAM__KIND__TTY;
	} else if (S_ISREG(st.st_mode) && io_readlink(AT_FDCWD, link, path, sizeof(path)) == 0) {
		out->kind = PBEAM__CONSOLE_STREAM__KIND__FILE;
		return message_string(&out->path, path);
	} else if (S_ISSOCK(st.st_mode)) {
		out->kind = PBEAM__CONSOLE_STREAM__KIND__SOCKET;
	} else {
		out->kind = S_ISFIFO(st.st_mode) ? PBEAM__CONSOLE_STREAM__KIND__PIPE
						 : PBEAM__CONSOLE_STREAM__KIND__NULLDEV;
	}
	return 0;
}

int capture_describe_streams(Pbeam__Job *out, const int console[3])
{
	out->console = calloc(3, sizeof(*out->console));
	if (!out->console)
		return -ENOMEM;
	for (int i = 0; i < 3; i++) {
		Pbeam__ConsoleStream *stream = message_new(&pbeam__console_stream__descriptor);
		int r;

		if (!stream)
			return -ENOMEM;
		stream->index = i;
		out->console[out->n_console++] = stream;
		r = describe_stream(stream, console[i]);
		if (r < 0)
			return r;
	}
	return 0;
}

/* `known`: the numbers of the manifest's processes, and those that have been added. */
static int add_number(Pbeam__Manifest *manifest, struct u64_map *known, int32_t number, const char *role)
{
	Pbeam__Number *out;

	if (number <= 0 || u64_map_find(known, (uint64_t)number) != U64_MAP_NONE)
		return 0;
	out = message_add(manifest, numbers, pbeam__number__descriptor);
	if (!out)
		return -ENOMEM;
	out->vid = number;
	if (u64_map_set(known, (uint64_t)number, 0) < 0)
		return -ENOMEM;
	return message_string(&out->role, role);
}

static int list_numbers(Pbeam__Manifest *manifest, struct u64_map *known)
{
	int r = 0;

	for (size_t i = 0; i < manifest->n_processes && r == 0; i++)
		r = u64_map_set(known, (uint64_t)manifest->processes[i]->vpid, 0);
	for (size_t i = 0; i < manifest->n_numbers && r == 0; i++)
		r = u64_map_set(known, (uint64_t)manifest->numbers[i]->vid, 0);
	for (size_t i = 0; i < manifest->n_processes && r == 0; i++) {
		const Pbeam__Process *p = manifest->processes[i];

		if (add_number(manifest, known, p->vpgid, "group") < 0 ||
		    add_number(manifest, known, p->vsid, "session") < 0 ||
		    add_number(manifest, known, p->vppid, "parent") < 0)
			r = -ENOMEM;
	}
	return r;
}

int capture_list_numbers(Pbeam__Manifest *manifest)
{
	struct u64_map known = {0};
	int r = list_numbers(manifest, &known);

	u64_map_free(&known);
	return r;
}

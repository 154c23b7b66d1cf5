/*
 * The dump of all descriptors: scan (object_scan.c), then each description by its kind, in phases: sockets
 * first, whose queues may hold descriptions that are in no descriptor table, epoll last, which names others.
 * In the end each kind verifies what could not be known before: that the other end of a pipe is in the group.
 */
#include "scip/object/object_dump.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/io.h"
#include "namespace/record.h"
#include "scip/object/common.h"

#define PHASES 3

/* F_GETOWN_EX and F_GETSIG; not for O_PATH descriptors, which have neither. */
static int dump_owner(struct object_dump *dump, struct object_entry *entry, struct err *err)
{
	struct f_owner_ex owner;
	int sig;

	if (entry->source.flags & O_PATH)
		return 0;
	sig = fcntl(entry->source.local, F_GETSIG);
	if (sig < 0 || fcntl(entry->source.local, F_GETOWN_EX, &owner) < 0)
		return err_sys(err, "an object whose owner cannot be read");
	entry->out->owner_signal = sig;
	if (owner.pid == 0)
		return 0;
	entry->out->owner_type = owner.type;
	entry->out->owner_vid = names_virtual(dump->names, (struct rpid){owner.pid}).n;
	return 0;
}

static const struct object_ops *find_ops(struct object_dump *dump, const struct object_source *source)
{
	for (size_t i = 0; object_table[i]; i++)
		if (object_table[i]->match(dump, source))
			return object_table[i];
	return NULL;
}

/* Texts for known objects that cannot be saved, clearer than their links. */
static int refuse_unknown(const struct object_source *source, struct err *err)
{
	static const struct {
		const char *link, *text;
	} known[] = {
		{"anon_inode:[io_uring]",
		 "an io_uring instance, which cannot be saved; close it first, or run "
		 "the program without io_uring"},
		{"anon_inode:[userfaultfd]", "a userfaultfd, which cannot be saved; close it first"},
		{"anon_inode:[perf_event]", "a performance counter, which cannot be saved; close it first"},
		{"anon_inode:[fanotify]", "a fanotify instance, which cannot be saved; close it first"},
		{"anon_inode:bpf-map", "a BPF map, which cannot be saved; close it first"},
		{"anon_inode:bpf-prog", "a BPF program, which cannot be saved; close it first"},
		{"anon_inode:[fscontext]", "a file system context, which cannot be saved; close it first"},
		{"anon_inode:[landlock-ruleset]",
		 "a Landlock ruleset, which cannot be saved; close it first"},
		{"anon_inode:seccomp notify", "a seccomp listener, which cannot be saved; close it first"},
		{"/secretmem (deleted)",
		 "secret memory (memfd_secret), which cannot be read; close it first"},
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (strcmp(source->link, known[i].link) == 0)
			return err_set(err, -ENOTSUP, "%s", known[i].text);
	if (S_ISCHR(source->st.st_mode) || S_ISBLK(source->st.st_mode))
		return err_set(err, -ENOTSUP,
			       "the device %s, whose state cannot be saved; close it before the checkpoint",
			       source->link);
	return err_set(err, -ENOTSUP, "%s, which cannot be saved; close it before the checkpoint",
		       source->link);
}

static int name_error(const struct object_entry *entry, int code, struct err *err)
{
	const struct object_source *source = &entry->source;
	auto_free char *comm = NULL;
	char path[64];

	if (source->hidden)
		return err_wrap(err, code, "a descriptor passed in a socket's queue is %s",
				entry->ops ? entry->ops->name : "an object");
	snprintf(path, sizeof(path), "/proc/%d/comm", source->holder.n);
	if (io_slurp(AT_FDCWD, path, 4096, &comm, NULL) == 0)
		comm[strcspn(comm, "\n")] = 0;
	if (err) {
		char text[ERR_TEXT_MAX];

		snprintf(text, sizeof(text), "%s", err->text);
		return err_set(err, code, "vpid %d (%s): fd %d is %.900s", source->holder_vpid.n,
			       comm ? comm : "?", source->holder_fd, text);
	}
	return code;
}

int object_dump_as_usual(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
			 struct err *err)
{
	const struct object_ops *ops = find_ops(dump, source);

	if (!ops)
		return refuse_unknown(source, err);
	out->kind_case = ops->kind;
	return ops->dump(dump, source, out, err);
}

static int dump_entry(struct object_dump *dump, struct object_entry *entry, struct err *err)
{
	const struct object_external *external = dump->options->external;
	int r = dump_owner(dump, entry, err);

	entry->dumped = true;
	if (r == 0 && external)
		r = external->dump(external->arg, dump, &entry->source, entry->out, err);
	if (r)
		return r < 0 ? r : 0;
	entry->out->kind_case = entry->ops->kind;
	return entry->ops->dump(dump, &entry->source, entry->out, err);
}

static int dump_phase(struct object_dump *dump, int phase, struct err *err)
{
	/* nentries grows while sockets are dumped. */
	for (size_t i = 0; i < dump->nentries; i++) {
		struct object_entry *entry = dump->entries[i];
		int r = 0;

		if (!entry->ops) {
			entry->ops = find_ops(dump, &entry->source);
			if (!entry->ops)
				r = refuse_unknown(&entry->source, err);
		}
		if (r == 0 && !entry->dumped && entry->ops->phase == phase)
			r = dump_entry(dump, entry, err);
		if (r < 0)
			return name_error(entry, r, err);
	}
	return 0;
}

static int dump_entries(struct object_dump *dump, struct err *err)
{
	int r = 0;

	for (int phase = 0; phase < PHASES && r == 0; phase++)
		r = dump_phase(dump, phase, err);
	for (size_t i = 0; i < dump->nentries && r == 0; i++) {
		struct object_entry *entry = dump->entries[i];

		if (entry->out->external || !entry->ops->verify)
			continue;
		r = entry->ops->verify(dump, &entry->source, entry->out, err);
		if (r < 0)
			r = name_error(entry, r, err);
	}
	return r;
}

int object_dump_all(struct names *names, struct image_writer *writer, Pbeam__Manifest *manifest,
		    const struct rpid *rpids, const struct object_dump_options *options, struct err *err)
{
	struct object_dump dump = {
		.names = names,
		.writer = writer,
		.manifest = manifest,
		.options = options,
		.self = getpid(),
	};
	int r;

	io_raise_descriptor_limit(); /* for pidfd_getfd(2) */
	r = object_scan_processes(&dump, rpids, err);
	if (r == 0 && options->external)
		r = options->external->survey(options->external->arg, &dump, err);
	if (r == 0)
		r = dump_entries(&dump, err);
	for (size_t i = 0; i < dump.nentries; i++) {
		close(dump.entries[i]->source.local);
		free(dump.entries[i]->source.link);
		free(dump.entries[i]->source.fdinfo);
		free(dump.entries[i]);
	}
	free(dump.entries);
	object_scan_free(&dump);
	unix_diag_free(&dump.diag);
	tcp_table_free(&dump.tcp);
	return r;
}

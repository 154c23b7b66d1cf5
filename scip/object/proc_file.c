/*
 * Files and directories of /proc, /sys and the like, which have no contents of their own: opened again by
 * name, at the same offset. Numbers in /proc/PID and /proc/PID/task/TID are kept as virtual ones; so they are
 * opened late, when the processes are there.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_table.h"

#define OPEN_FLAGS (O_ACCMODE | O_APPEND | O_NONBLOCK | O_PATH | O_DIRECTORY)

static bool proc_match(struct object_dump *dump, const struct object_source *source)
{
	struct statfs fs;

	if (source->link[0] != '/' || (!S_ISREG(source->st.st_mode) && !S_ISDIR(source->st.st_mode)) ||
	    fstatfs(source->local, &fs) < 0)
		return false;
	switch ((unsigned long)fs.f_type) {
	case PROC_SUPER_MAGIC:
	case SYSFS_MAGIC:
	case CGROUP_SUPER_MAGIC:
	case CGROUP2_SUPER_MAGIC:
	case DEBUGFS_MAGIC:
	case TRACEFS_MAGIC:
	case SECURITYFS_MAGIC:
		return true;
	default:
		return false;
	}
}

static int proc_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
		     struct err *err)
{
	Pbeam__ProcFile *proc = object_message(Pbeam__ProcFile, pbeam__proc_file__init);
	auto_free char *path = strdup(source->link);
	struct names *names = object_dump_names(dump);
	int pid, tid, end = 0;
	const char *rest = path;
	off_t offset;

	out->proc_file = proc;
	if (!proc || !path)
		return object_no_memory(err);
	if (object_cut_deleted(path))
		return err_set(err, -ENOTSUP, "%s, of a process that has ended; close it first", path);
	if (sscanf(path, "/proc/%d%n", &pid, &end) == 1 && end && (path[end] == '/' || !path[end])) {
		proc->vpid = names_virtual(names, (struct rpid){pid}).n;
		rest = path + end;
		end = 0;
		if (sscanf(rest, "/task/%d%n", &tid, &end) == 1 && end && (rest[end] == '/' || !rest[end])) {
			proc->vtid = names_virtual(names, (struct rpid){tid}).n;
			rest += end;
		}
	}
	offset = source->flags & O_PATH ? 0 : lseek(source->local, 0, SEEK_CUR);
	proc->offset = offset < 0 ? 0 : (uint64_t)offset;
	proc->is_directory = S_ISDIR(source->st.st_mode);
	return object_set_bytes(&proc->path, rest, strlen(rest), err);
}

static int proc_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	auto_free char *path = object_text(&object->proc_file->path);

	if (!path)
		return object_no_memory(err);
	if (object->proc_file->vpid == 0 && access(path, F_OK) < 0)
		return err_sys(err, "file %s is missing", path);
	return 0;
}

static int proc_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	const Pbeam__ProcFile *saved = object->proc_file;
	struct names *names = object_restore_names(restore);
	auto_free char *rest = object_text(&saved->path);
	char path[4096], head[64] = "";

	if (!rest)
		return object_no_memory(err);
	if (saved->vpid && saved->vtid)
		snprintf(head, sizeof(head), "/proc/%d/task/%d",
			 names_real(names, (struct vpid){saved->vpid}).n,
			 names_real(names, (struct vpid){saved->vtid}).n);
	else if (saved->vpid)
		snprintf(head, sizeof(head), "/proc/%d", names_real(names, (struct vpid){saved->vpid}).n);
	if (snprintf(path, sizeof(path), "%s%s", head, rest) >= (int)sizeof(path))
		return err_set(err, -ENAMETOOLONG, "the path of a file in /proc is too long");
	*fd = open(path, (int)(object->flags & OPEN_FLAGS) | O_CLOEXEC);
	if (*fd < 0)
		return err_sys(err, "open %s", path);
	if (saved->offset)
		(void)!lseek(*fd, (off_t)saved->offset, SEEK_SET);
	return 0;
}

const struct object_ops object_proc_file = {
	.name = "/proc file",
	.kind = PBEAM__OBJECT__KIND_PROC_FILE,
	.phase = 1,
	.late = true,
	.match = proc_match,
	.dump = proc_dump,
	.check = proc_check,
	.restore = proc_restore,
	.shift = object_shift_none,
};

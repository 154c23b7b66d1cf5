#include "scip/object/common.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

#include "base/bytes.h"
#include "base/io.h"

int object_no_memory(struct err *err)
{
	return err_set(err, -ENOMEM, "out of memory");
}

int object_set_bytes(ProtobufCBinaryData *out, const void *data, size_t len, struct err *err)
{
	uint8_t *copy = malloc(len ? len : 1);

	if (!copy)
		return object_no_memory(err);
	bytes_copy(copy, data, len);
	free(out->data);
	out->data = copy;
	out->len = len;
	return 0;
}

char *object_text(const ProtobufCBinaryData *bytes)
{
	char *text = malloc(bytes->len + 1);

	if (text) {
		bytes_copy(text, bytes->data, bytes->len);
		text[bytes->len] = 0;
	}
	return text;
}

uint64_t object_fdinfo_number(const char *fdinfo, const char *key, int base, uint64_t fallback)
{
	size_t len = strlen(key);

	for (const char *line = fdinfo; line && *line;) {
		if (strncmp(line, key, len) == 0 && line[len] == ':')
			return strtoull(line + len + 1, NULL, base);
		line = strchr(line, '\n');
		if (line)
			line++;
	}
	return fallback;
}

uint64_t object_mtime_ns(const struct stat *st)
{
	return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

uint64_t object_ctime_ns(const struct stat *st)
{
	return (uint64_t)st->st_ctim.tv_sec * 1000000000u + (uint64_t)st->st_ctim.tv_nsec;
}

int object_identity(const struct stat *st, const char *path, bool deleted, Pbeam__FileIdentity **out,
		    struct err *err)
{
	Pbeam__FileIdentity *file = object_message(Pbeam__FileIdentity, pbeam__file_identity__init);

	*out = file;
	if (!file)
		return object_no_memory(err);
	file->dev = st->st_dev;
	file->ino = st->st_ino;
	file->size = (uint64_t)st->st_size;
	file->mtime_ns = object_mtime_ns(st);
	file->mode = st->st_mode;
	file->deleted = deleted;
	return object_set_bytes(&file->path, path, strlen(path), err);
}

bool object_cut_deleted(char *path)
{
	static const char tail[] = " (deleted)";
	size_t len = strlen(path);

	if (len < sizeof(tail) - 1 || strcmp(path + len - (sizeof(tail) - 1), tail) != 0)
		return false;
	path[len - (sizeof(tail) - 1)] = 0;
	return true;
}

int object_reopen(int fd, int flags)
{
	char path[40];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, flags | O_CLOEXEC | O_NOCTTY);
	return again < 0 ? -errno : again;
}

int object_set_nonblock(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0)
		return -errno;
	if (((flags & O_NONBLOCK) != 0) != on &&
	    fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) < 0)
		return -errno;
	return (flags & O_NONBLOCK) != 0;
}

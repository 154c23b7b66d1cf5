/* Small helpers of the object kinds: messages, fdinfo text, extents. */
#ifndef SCIP_OBJECT_COMMON_H
#define SCIP_OBJECT_COMMON_H

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "scip/object/object.h"

/* A message on the heap, initialised; NULL without memory. */
#define object_message(type, init)                                                                           \
	({                                                                                                   \
		type *message_new = malloc(sizeof(type));                                                    \
		if (message_new)                                                                             \
			init(message_new);                                                                   \
		message_new;                                                                                 \
	})

/* Appends to a repeated field {pointer array, count}. 0 or -ENOMEM. */
#define object_append(array, count, item)                                                                    \
	({                                                                                                   \
		__typeof__(array) append_bigger = realloc(array, ((count) + 1) * sizeof(*(array)));          \
		int append_result = -ENOMEM;                                                                 \
		if (append_bigger) {                                                                         \
			(array) = append_bigger;                                                             \
			(array)[(count)++] = (item);                                                         \
			append_result = 0;                                                                   \
		}                                                                                            \
		append_result;                                                                               \
	})

int object_no_memory(struct err *err);
must_check int object_set_bytes(ProtobufCBinaryData *out, const void *data, size_t len, struct err *err);
/* As a NUL-terminated string on the heap; NULL without memory. */
char *object_text(const ProtobufCBinaryData *bytes);

/* The number after "key:" in fdinfo text, in the given base; `fallback` when the key is not there. */
uint64_t object_fdinfo_number(const char *fdinfo, const char *key, int base, uint64_t fallback);

/* Stores `len` bytes in the image; *out is a new message, or NULL for no bytes. */
must_check int object_put_extent(struct object_dump *dump, const void *data, size_t len, Pbeam__Extent **out,
				 struct err *err);
/* Reads an extent into a malloc'd buffer (at least one byte). */
must_check int object_get_extent(struct object_restore *restore, const Pbeam__Extent *extent, char **data,
				 size_t *len, struct err *err);

/* Identity of the file behind a source. `path` as it was, without " (deleted)". */
must_check int object_identity(const struct stat *st, const char *path, bool deleted,
			       Pbeam__FileIdentity **out, struct err *err);
uint64_t object_mtime_ns(const struct stat *st);
uint64_t object_ctime_ns(const struct stat *st);
/* Cuts a trailing " (deleted)". True if it was there. */
bool object_cut_deleted(char *path);
/* A new description of the same object: /proc/self/fd/N opened again. -errno. */
int object_reopen(int fd, int flags);
/* Sets O_NONBLOCK or clears it; returns what it was, or -errno. */
int object_set_nonblock(int fd, bool on);

#endif

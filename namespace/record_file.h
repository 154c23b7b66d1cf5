/* Where records are kept. Private to namespace/. */
#ifndef NAMESPACE_RECORD_FILE_H
#define NAMESPACE_RECORD_FILE_H

#include "namespace/names.h"

/* "RUNTIME/record/KEEPER.SUFFIX" into `out` (PATH_MAX bytes). -errno. */
must_check int record_path(char *out, struct rpid keeper, const char *suffix);
/* Appends to a file, creating it if necessary; whole beside others' appends. -errno. */
must_check int record_append(const char *path, const void *data, size_t len);

#endif

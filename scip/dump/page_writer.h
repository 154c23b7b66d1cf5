/*
 * Writes pages to the image, from inside the process.
 *
 * The process opens the image itself (/proc/SCIP/fd/N) and writes its own memory: one copy, and two stops for
 * each batch of up to BATCH_BYTES. Small runs that are contiguous in the file share a pwritev. scip reads and
 * writes what the process cannot: memory without read permission or with a protection key, and everything if
 * the process cannot write (RLIMIT_FSIZE, no free descriptor, no /proc). It also repeats what a batch has
 * failed at, which yields the reason.
 */
#ifndef SCIP_DUMP_PAGE_WRITER_H
#define SCIP_DUMP_PAGE_WRITER_H

#include "image/image.h"
#include "proto/image.pb-c.h"
#include "scip/tracee/process.h"

struct page_writer;
/* `caller` makes the calls. The area must be injected. */
must_check int page_writer_open(struct page_writer **out, struct process *process, struct tracee *caller,
				int image_fd, struct image_arena *arena, struct err *err);
/* Queues `count` pages at `address` for `offset` of the file; they are written now or by the flush. 0 or
 * -errno. */
must_check int page_writer_add(struct page_writer *writer, uint64_t address, uint64_t count, uint64_t offset,
			       bool unreadable, struct err *err);
must_check int page_writer_flush(struct page_writer *writer, struct err *err);
/* Stores pages that may be in the image already: reads them, leaves out zero pages, writes those that are
 * new. Appends their places to `pages`, for address + `shift`. With `all` every page is stored, except pages
 * that cannot be read (behind the end of their file). 0 or -errno. */
must_check int page_writer_common(struct page_writer *writer, uint64_t address, uint64_t count, int64_t shift,
				  bool all, size_t *n_pages, Pbeam__Pages ***pages, struct err *err);
/* Bytes written so far. */
uint64_t page_writer_bytes(const struct page_writer *writer);
/* Closes the process's descriptor. */
void page_writer_close(struct page_writer *writer);

/* Appends {address, count, offset}, or joins it to the last run that it continues in memory and in the file.
 * Offset 0 is no place in the file (PAGE_SENT) and is never joined by offset. 0 or -ENOMEM. */
must_check int pages_append(size_t *n, Pbeam__Pages ***pages, uint64_t address, uint64_t count,
			    uint64_t offset);

#endif

/*
 * Pages into the image, from inside.
 *
 * The process opens the image itself (/proc/SCIP/fd/N) and writes its own memory: one copy, no stops but two
 * for each batch of up to BATCH_BYTES. Small runs that follow each other in the file go in one pwritev. What
 * the process cannot read itself (no permission, a protection key), or when it cannot write (RLIMIT_FSIZE, no
 * free descriptor, no /proc), is read and written by scip; so is what a batch failed at, which gives the
 * reason as well.
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
/* Takes note of `count` pages at `address` for the file's `offset`; they are written now or at the flush. */
must_check int page_writer_add(struct page_writer *writer, uint64_t address, uint64_t count, uint64_t offset,
			       bool unreadable, struct err *err);
must_check int page_writer_flush(struct page_writer *writer, struct err *err);
/* Pages that may be in the image already: reads them, leaves out zero pages, writes those that are new. Their
 * places are appended to `pages`, for address + `shift`. With `all` every page is stored anew and those that
 * cannot be read (behind the end of their file) are left out. */
must_check int page_writer_common(struct page_writer *writer, uint64_t address, uint64_t count, int64_t shift,
				  bool all, size_t *n_pages, Pbeam__Pages ***pages, struct err *err);
/* Bytes written so far. */
uint64_t page_writer_bytes(const struct page_writer *writer);
/* Closes the process's descriptor. */
void page_writer_close(struct page_writer *writer);

/* Appends {address, count, offset}, joining it to the last where it continues it in both. Offset 0 is no
 * place in the file (PAGE_SENT), and nothing continues it. -ENOMEM. */
must_check int pages_append(size_t *n, Pbeam__Pages ***pages, uint64_t address, uint64_t count,
			    uint64_t offset);

#endif

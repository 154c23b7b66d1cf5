/*
 * Memory that the image does not hold is clean in the file that is mapped there: it is read from that file as
 * long as it is the one that was mapped (same size and time of change).
 */
#include "scip/job/image_stack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/text.h"
#include "image/image.h"
#include "scip/tracee/stack.h"

enum { STATUS_FAILED = 1 };

struct saved_memory {
	struct image_reader *image;
	const Pbeam__Process *process;
	struct stack_mapping *mappings;
	size_t nmappings;
};

static char *text_of(const ProtobufCBinaryData *bytes)
{
	return strndup(bytes->data ? (const char *)bytes->data : "", bytes->len);
}

/* The path of a file that is still the one that was mapped, malloc'd, or NULL. */
static char *unchanged_file(const Pbeam__FileIdentity *file)
{
	auto_free char *path = file && file->path.len && !file->deleted ? text_of(&file->path) : NULL;
	struct stat st;

	if (!path || stat(path, &st) < 0 || (uint64_t)st.st_size != file->size)
		return NULL;
	if ((uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec != file->mtime_ns)
		return NULL;
	return steal_ptr(&path);
}

static int read_page(const struct saved_memory *memory, const Pbeam__Mapping *m, uint64_t address, void *buf,
		     size_t len)
{
	uint64_t page = address & ~(uint64_t)(IMAGE_PAGE - 1);
	const char *file = NULL;

	for (size_t i = 0; i < m->n_pages; i++) {
		const Pbeam__Pages *p = m->pages[i];

		uint64_t offset;
		int home;

		if (page < p->address || page >= p->address + p->count * IMAGE_PAGE)
			continue;
		home = image_reader_home(memory->image, p, &offset, NULL);
		return home >= 0 && io_pread_full(home, buf, len, (off_t)(offset + (address - p->address))) ==
					       (ssize_t)len
			       ? 0
			       : -EFAULT;
	}
	for (size_t i = 0; i < memory->nmappings; i++)
		if (memory->mappings[i].start == m->start)
			file = memory->mappings[i].file;
	auto_close int fd = file ? open(file, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return -EFAULT;
	return io_pread_full(fd, buf, len, (off_t)(m->file_offset + (address - m->start))) == (ssize_t)len
		       ? 0
		       : -EFAULT;
}

static int read_saved(void *arg, uint64_t address, void *buf, size_t len)
{
	const struct saved_memory *memory = arg;
	const Pbeam__Memory *m = memory->process->memory;

	while (len) {
		const Pbeam__Mapping *mapping = NULL;
		size_t piece = IMAGE_PAGE - address % IMAGE_PAGE;
		int r;

		for (size_t i = 0; i < m->n_mappings && !mapping; i++)
			if (address >= m->mappings[i]->start && address < m->mappings[i]->end)
				mapping = m->mappings[i];
		if (!mapping)
			return -EFAULT;
		piece = piece < len ? piece : len;
		r = read_page(memory, mapping, address, buf, piece);
		if (r < 0)
			return r;
		address += piece;
		buf = (char *)buf + piece;
		len -= piece;
	}
	return 0;
}

static void free_mappings(struct stack_mapping *mappings, size_t n)
{
	for (size_t i = 0; mappings && i < n; i++) {
		free((char *)(uintptr_t)mappings[i].name);
		free((char *)(uintptr_t)mappings[i].file);
	}
	free(mappings);
}

static struct stack_mapping *list_mappings(const Pbeam__Memory *memory)
{
	struct stack_mapping *list = calloc(memory->n_mappings + 1, sizeof(*list));

	for (size_t i = 0; list && i < memory->n_mappings; i++) {
		const Pbeam__Mapping *m = memory->mappings[i];

		list[i].start = m->start;
		list[i].end = m->end;
		list[i].offset = m->file_offset;
		list[i].name = text_of(m->file && m->file->path.len ? &m->file->path : &m->name);
		list[i].file = unchanged_file(m->file);
		if (!list[i].name) {
			free_mappings(list, i + 1);
			return NULL;
		}
	}
	return list;
}

static int write_process(struct image_reader *image, const Pbeam__Process *process, struct err *err)
{
	struct saved_memory memory = {.image = image, .process = process};
	struct stack_program program = {.read = read_saved, .arg = &memory};
	int r = 0;

	if (!process->memory) /* a zombie */
		return 0;
	memory.mappings = list_mappings(process->memory);
	if (!memory.mappings)
		return err_code(err, -ENOMEM, "read the mappings of vpid %d", process->vpid);
	program.mappings = memory.mappings;
	program.nmappings = memory.nmappings = process->memory->n_mappings;
	for (size_t t = 0; r == 0 && t < process->n_threads; t++) {
		const Pbeam__Thread *thread = process->threads[t];
		struct user_regs_struct regs;
		auto_free char *comm = text_of(&thread->comm);

		printf("thread %d (%s)\n", thread->vtid, comm ? text_visible(comm) : "?");
		if (thread->registers.len != sizeof(regs))
			continue; /* the leader has ended, others run on */
		memcpy(&regs, thread->registers.data, sizeof(regs));
		r = stack_write_thread(&program, &regs, stdout);
		if (r < 0)
			err_code(err, r, "write the stack of thread %d", thread->vtid);
	}
	free_mappings(memory.mappings, memory.nmappings);
	return r;
}

int image_stack_run(const char *program, const char *path)
{
	const Pbeam__Manifest *manifest;
	struct image_reader *image;
	struct err err = ERR_INIT;
	int r = image_reader_open(&image, path, &err);

	if (r == 0) {
		manifest = image_reader_manifest(image);
		for (size_t i = 0; r == 0 && i < manifest->n_processes; i++)
			r = write_process(image, manifest->processes[i], &err);
		image_reader_close(image);
	}
	if (r == 0 && fflush(stdout) != 0)
		r = err_sys(&err, "write to standard output");
	if (r < 0)
		fprintf(stderr, "%s: %s\n", text_visible(program), err.text);
	return r < 0 ? STATUS_FAILED : 0;
}

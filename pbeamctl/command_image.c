#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "image/image.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"
#include "pbeamctl/image_diff.h"

static void print_bytes(const ProtobufCBinaryData *bytes)
{
	auto_free char *text = bytes->len ? strndup((const char *)bytes->data, bytes->len) : NULL;

	if (text)
		format_text(text, -1);
}

static const char *object_name(Pbeam__Object__KindCase kind)
{
	const ProtobufCFieldDescriptor *field =
		protobuf_c_message_descriptor_get_field(&pbeam__object__descriptor, (unsigned)kind);

	return field ? field->name : "unknown";
}

static const char *state_name(Pbeam__Process__State state)
{
	return state == PBEAM__PROCESS__STATE__ZOMBIE	 ? "ended"
	       : state == PBEAM__PROCESS__STATE__STOPPED ? "stopped"
							 : "running";
}

static uint64_t stored_pages(const Pbeam__Process *process)
{
	uint64_t pages = 0;

	for (size_t i = 0; process->memory && i < process->memory->n_mappings; i++)
		for (size_t k = 0; k < process->memory->mappings[i]->n_pages; k++)
			pages += process->memory->mappings[i]->pages[k]->count;
	return pages;
}

static void show_process(const Pbeam__Process *process)
{
	char size[16];

	format_size(stored_pages(process) * IMAGE_PAGE, size);
	printf("%7d %7d %-8s %7zu %7s %11zu ", process->vpid, process->vppid, state_name(process->state),
	       process->n_threads, size, process->n_descriptors);
	if (process->n_threads)
		print_bytes(&process->threads[0]->comm);
	putchar(' ');
	if (process->exe)
		print_bytes(&process->exe->path);
	putchar('\n');
}

/* Prints the number of objects of each kind. */
static void show_objects(const Pbeam__Manifest *manifest)
{
	enum { KINDS = 64 };
	unsigned counts[KINDS] = {0};

	for (size_t i = 0; i < manifest->n_objects; i++)
		if ((unsigned)manifest->objects[i]->kind_case < KINDS)
			counts[manifest->objects[i]->kind_case]++;
	printf("objects   ");
	for (int k = 0; k < KINDS; k++)
		if (counts[k])
			printf(" %s %u", object_name((Pbeam__Object__KindCase)k), counts[k]);
	printf("%s\n", manifest->n_objects ? "" : " none");
}

static void show_manifest(const char *path, const struct image_reader *image)
{
	const Pbeam__Manifest *m = image_reader_manifest(image);
	char when[32], size[16], pause[24];

	format_time(m->created_ns, when);
	format_size(image_reader_size(image), size);
	format_span(m->pause_ns, pause);
	printf("image      %s\n", text_visible(path));
	printf("written    %s by %s, format %u, %s, paused for %s\n", when, text_visible(m->writer),
	       m->format, size, pause);
	if (m->host)
		printf("host       %s, Linux %s, %s\n", text_visible(m->host->name),
		       text_visible(m->host->kernel), text_visible(m->host->machine));
	if (m->job)
		printf("job        %s, first process vpid %d\n",
		       m->job->name[0] ? text_visible(m->job->name) : "(no name)", m->job->root_vpid);
	if (m->parent)
		printf("parent     %s, in the same directory\n", text_visible(m->parent->name));
	printf("user       %u, group %u\n", m->uid, m->gid);
	show_objects(m);
	printf("files      %zu with contents, %zu shared memory\n\n", m->n_files, m->n_shared);
	format_heading("   VPID  PARENT STATE    THREADS  MEMORY DESCRIPTORS NAME EXECUTABLE");
	for (size_t i = 0; i < m->n_processes; i++)
		show_process(m->processes[i]);
}

static int image_show(const char *path)
{
	struct image_reader *image;
	struct err err = ERR_INIT;

	if (image_reader_open(&image, path, &err) < 0)
		return command_failed(&err);
	show_manifest(path, image);
	image_reader_close(image);
	return STATUS_DONE;
}

static int open_whole(struct image_reader **out, const char *path, struct err *err)
{
	int r = image_reader_open(out, path, err);

	if (r < 0)
		return r;
	r = image_reader_verify(*out, err);
	if (r < 0)
		image_reader_close(*out);
	return r;
}

static int image_check(const char *path)
{
	struct image_reader *image;
	struct err err = ERR_INIT;

	if (open_whole(&image, path, &err) < 0)
		return command_failed(&err);
	image_reader_close(image);
	printf("%s: whole\n", text_visible(path));
	return STATUS_DONE;
}

static int image_compare(const char *older, const char *newer)
{
	struct image_reader *a, *b;
	struct err err = ERR_INIT;
	int r = open_whole(&a, older, &err);

	if (r < 0)
		return command_failed(&err);
	r = open_whole(&b, newer, &err);
	if (r == 0) {
		r = image_diff(a, b, &err);
		image_reader_close(b);
	}
	image_reader_close(a);
	return r < 0 ? command_failed(&err) : STATUS_DONE;
}

static int image_run(const struct command_line *line)
{
	const char *verb = line->words[0];
	int (*action)(const char *path) = NULL;
	int r = STATUS_DONE;

	if (!strcmp(verb, "diff"))
		return line->nwords == 3 ? image_compare(line->words[1], line->words[2])
					 : command_misused(line->command, "diff requires two images");
	if (!strcmp(verb, "show"))
		action = image_show;
	else if (!strcmp(verb, "verify"))
		action = image_check;
	else
		return command_misused(line->command, "%s: must be show, verify or diff", verb);
	if (line->nwords < 2)
		return command_misused(line->command, "%s requires an image", verb);
	for (int i = 1; i < line->nwords; i++) {
		int one = action(line->words[i]);

		if (one != STATUS_DONE)
			r = one;
	}
	return r;
}

const struct command image_command = {
	.name = "image",
	.synopsis = "show|verify IMAGE... | diff OLDER NEWER",
	.summary = "show, verify or compare images",
	.text = "show prints the contents of an image, verify checks all of it against its\n"
		"digests, and diff lists what changed between two images: processes, threads,\n"
		"descriptors, mappings, pages.",
	.options = command_no_options,
	.words = WORDS_FILES,
	.least = 1,
	.most = 1 << 20,
	.run = image_run,
};

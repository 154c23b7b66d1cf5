#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/user.h>

#include "image/image.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"
#include "pbeamctl/symbol.h"

enum { FRAMES_MOST = 64 };

static const Pbeam__Mapping *find_mapping(const Pbeam__Process *process, uint64_t address)
{
	for (size_t i = 0; process->memory && i < process->memory->n_mappings; i++) {
		const Pbeam__Mapping *m = process->memory->mappings[i];

		if (address >= m->start && address < m->end)
			return m;
	}
	return NULL;
}

static void print_bytes(const ProtobufCBinaryData *bytes)
{
	for (size_t i = 0; i < bytes->len && bytes->data[i]; i++)
		putchar(bytes->data[i] < 32 || bytes->data[i] == 127 ? '?' : bytes->data[i]);
}

static void print_frame(const Pbeam__Process *process, int number, uint64_t address)
{
	const Pbeam__Mapping *m = find_mapping(process, address);
	char symbol[256], path[4096];

	printf("    #%-2d 0x%016" PRIx64, number, address);
	if (m && m->file && m->file->path.len && m->file->path.len < sizeof(path)) {
		uint64_t offset = address - m->start + m->file_offset;

		memcpy(path, m->file->path.data, m->file->path.len);
		path[m->file->path.len] = 0;
		printf(" in ");
		if (symbol_find(path, offset, symbol, sizeof(symbol)))
			printf("%s, ", symbol);
		print_bytes(&m->file->path);
		printf("+0x%" PRIx64, offset);
	} else if (m && m->name.len) {
		printf(" in ");
		print_bytes(&m->name);
	} else {
		printf(" in memory without a file");
	}
	putchar('\n');
}

/* A word of the saved memory; false where the image does not hold it. */
static bool read_word(struct image_reader *image, const Pbeam__Process *process, uint64_t address,
		      uint64_t *word)
{
	const Pbeam__Mapping *m = find_mapping(process, address);

	for (size_t i = 0; m && i < m->n_pages; i++) {
		const Pbeam__Pages *pages = m->pages[i];
		Pbeam__Extent where = PBEAM__EXTENT__INIT;

		if (address < pages->address || address + 8 > pages->address + pages->count * IMAGE_PAGE)
			continue;
		where.offset = pages->offset + (address - pages->address);
		where.length = 8;
		return image_reader_get(image, &where, word, NULL) == 0;
	}
	return false;
}

/* The chain of saved frame pointers: whole for programs built with them, else it ends early. */
static void print_thread(struct image_reader *image, const Pbeam__Process *process,
			 const Pbeam__Thread *thread)
{
	struct user_regs_struct regs;
	uint64_t frame, next, back;

	printf("  thread %d (", thread->vtid);
	print_bytes(&thread->comm);
	printf(")");
	if (thread->call)
		printf(", in system call %" PRId64, thread->call->number);
	putchar('\n');
	if (thread->registers.len != sizeof(regs))
		return;
	memcpy(&regs, thread->registers.data, sizeof(regs));
	print_frame(process, 0, regs.rip);
	frame = regs.rbp;
	for (int n = 1; n < FRAMES_MOST && frame >= regs.rsp && frame % 8 == 0; n++) {
		const Pbeam__Mapping *code;

		if (!read_word(image, process, frame, &next) || !read_word(image, process, frame + 8, &back))
			break;
		code = find_mapping(process, back);
		if (!code || !(code->prot & 4))
			break;
		print_frame(process, n, back);
		if (next <= frame)
			break;
		frame = next;
	}
}

static int show_image(const char *path)
{
	struct image_reader *image;
	const Pbeam__Manifest *manifest;
	struct err err = ERR_INIT;

	if (image_reader_open(&image, path, &err) < 0)
		return command_failed(&err);
	manifest = image_reader_manifest(image);
	for (size_t i = 0; i < manifest->n_processes; i++) {
		const Pbeam__Process *process = manifest->processes[i];

		printf("vpid %d%s\n", process->vpid,
		       process->state == PBEAM__PROCESS__STATE__ZOMBIE ? ": ended, not waited for" : "");
		for (size_t t = 0; t < process->n_threads; t++)
			print_thread(image, process, process->threads[t]);
	}
	image_reader_close(image);
	return STATUS_DONE;
}

static int run(const struct command_line *line)
{
	struct err err = ERR_INIT;
	Pbeam__Target target;
	ProtobufCMessage *reply;
	const char *text;
	struct stat st;

	client_target(line->words[0], &target);
	if (!target.vpid && stat(line->words[0], &st) == 0 && S_ISREG(st.st_mode))
		return show_image(line->words[0]);
	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_STACK, &target.base, &pbeam__stack_reply__descriptor,
		       &reply, &err) < 0)
		return command_failed(&err);
	text = ((const Pbeam__StackReply *)reply)->text;
	fputs(text, stdout);
	if (*text && text[strlen(text) - 1] != '\n')
		putchar('\n');
	protobuf_c_message_free_unpacked(reply, NULL);
	return STATUS_DONE;
}

static const struct command_option options[] = {{NULL, 0, NULL, NULL, NULL}};

const struct command stack_command = {
	.name = "stack",
	.synopsis = "VPID|NAME|IMAGE",
	.summary = "where each thread is",
	.text = "Prints the call stack of each thread of a process that runs (which goes on at once), or of "
		"all\n"
		"processes in an image.",
	.options = options,
	.words = WORDS_TARGET_OR_FILE,
	.least = 1,
	.most = 1,
	.run = run,
};

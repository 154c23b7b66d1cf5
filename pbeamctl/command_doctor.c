#include "pbeamctl/doctor.h"

#include <stdio.h>

#include "base/text.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"
#include "proto/message.h"

static const char *const words[] = {
	[FINDING_GOOD] = "good",
	[FINDING_LACKS] = "lacks",
	[FINDING_BAD] = "bad",
};

static const char *word_in_colour(enum finding finding)
{
	static const char *const coloured[] = {
		[FINDING_GOOD] = "\033[32mgood \033[0m",
		[FINDING_LACKS] = "\033[33mlacks\033[0m",
		[FINDING_BAD] = "\033[31mbad  \033[0m",
	};

	return format_colour() ? coloured[finding] : words[finding];
}

static void print_row(const struct check *check, enum finding finding, const char *found)
{
	printf("%-5s %-18s %s\n", word_in_colour(finding), check->name, text_visible(found));
	if (finding == FINDING_GOOD)
		return;
	printf("      %-18s %s\n", "", check->meaning);
	printf("      %-18s fix: %s\n", "", check->mend);
}

static void print_json_row(const struct check *check, enum finding finding, const char *found)
{
	json_open(NULL, '{');
	json_string("name", check->name);
	json_string("finding", words[finding]);
	json_string("found", found);
	json_string("meaning", check->meaning);
	json_string("mend", finding == FINDING_GOOD ? "" : check->mend);
	json_close('}');
}

/* Returns the worst finding. */
static enum finding run_checks(const struct check *check, bool json)
{
	enum finding worst = FINDING_GOOD;

	for (; check->name; check++) {
		char found[128] = "";
		enum finding finding = check->look(found);

		if (json)
			print_json_row(check, finding, found);
		else
			print_row(check, finding, found);
		if (finding > worst)
			worst = finding;
	}
	return worst;
}

/* Lists the programs that made system calls that scip does not know and failed with ENOSYS. Returns the
 * number of calls. */
static uint64_t unknown_calls(const Pbeam__ProcessList *list, bool json)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < list->n_processes; i++) {
		const Pbeam__ProcessInfo *p = list->processes[i];

		if (p->unknown_calls && !json)
			printf("%-5s %-18s vpid %d (%s): %llu\n", word_in_colour(FINDING_LACKS),
			       "unknown calls", p->vpid, text_visible(p->name),
			       (unsigned long long)p->unknown_calls);
		sum += p->unknown_calls;
	}
	return sum;
}

/* Checks that pbeamd can be started, and what the running programs met. */
static enum finding ask_daemon(bool json)
{
	static const struct check check = {"pbeamd", "all commands go through the daemon",
					   "run `pbeamd` in the foreground to see why it fails", NULL};
	struct err err = ERR_INIT;
	Pbeam__ProcessList *list;
	uint64_t unknown;
	char found[128];

	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_PS, NULL, &pbeam__process_list__descriptor, &list,
		       &err) < 0) {
		snprintf(found, sizeof(found), "%.127s", err.text);
		(json ? print_json_row : print_row)(&check, FINDING_BAD, found);
		return FINDING_BAD;
	}
	snprintf(found, sizeof(found), "running, %zu processes", list->n_processes);
	(json ? print_json_row : print_row)(&check, FINDING_GOOD, found);
	unknown = unknown_calls(list, json);
	message_free(list);
	if (json) {
		json_close(']');
		json_unsigned("unknown_calls", unknown);
	} else if (!unknown) {
		printf("%-5s %-18s none: every system call of the running programs is known\n",
		       word_in_colour(FINDING_GOOD), "unknown calls");
	}
	return FINDING_GOOD;
}

static int doctor_run(const struct command_line *line)
{
	bool json = command_flag(line, "json");
	enum finding worst = FINDING_GOOD, one;

	if (line->nwords)
		return doctor_image(line->words[0], json);
	if (json) {
		json_open(NULL, '{');
		json_open("checks", '[');
	}
	fflush(stdout); /* the checks fork, and buffered output would be printed twice */
	one = run_checks(doctor_host, json);
	worst = one > worst ? one : worst;
	fflush(stdout);
	one = run_checks(doctor_checks, json);
	worst = one > worst ? one : worst;
	fflush(stdout);
	one = ask_daemon(json);
	worst = one > worst ? one : worst;
	if (json) {
		if (one == FINDING_BAD)
			json_close(']');
		json_bool("usable", worst != FINDING_BAD);
		json_close('}');
		json_end();
	} else {
		printf("\n%s\n", worst == FINDING_GOOD ? "This machine has everything that scip uses."
				 : worst == FINDING_LACKS
					 ? "This machine has what scip needs; see above for what it lacks."
					 : "Something that scip needs is missing; see above.");
	}
	return worst == FINDING_BAD ? STATUS_FAILED : STATUS_DONE;
}

static const struct command_option doctor_options[] = {
	{"json", 0, NULL,
	 "one JSON document: {\"checks\": [...], \"unknown_calls\": N, \"usable\": true}, "
	 "of an image {\"image\": PATH, \"obstacles\": [...], \"restorable\": true}",
	 NULL},
	{NULL, 0, NULL, NULL, NULL},
};

const struct command doctor_command = {
	.name = "doctor",
	.synopsis = "[--json] [IMAGE]",
	.summary = "check what this machine allows, or whether it can restore an image",
	.text = "Tries everything that scip needs of the kernel and the user's environment. The exit status "
		"is 1\n"
		"if something that scip needs is missing. With IMAGE: prints what would prevent its restore\n"
		"here, one line each, and touches nothing; the exit status is 1 if there is anything.",
	.options = doctor_options,
	.words = WORDS_FILES,
	.most = 1,
	.run = doctor_run,
};

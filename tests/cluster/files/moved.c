/* Carries out commands, one per line, and prints the results: `moved [FILE TO READ [FILE TO WRITE]]`. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int answer(void);

static void show(const char *path)
{
	FILE *file = fopen(path, "r");
	char line[256] = "";

	if (file && fgets(line, sizeof(line), file))
		line[strcspn(line, "\n")] = 0;
	printf("%s\n", file ? line : strerror(errno));
	if (file)
		fclose(file);
}

static void show_link(const char *path)
{
	char text[4096];
	ssize_t n = readlink(path, text, sizeof(text) - 1);

	text[n < 0 ? 0 : n] = 0;
	printf("%s\n", n < 0 ? strerror(errno) : text);
}

static void put(const char *path, int flags)
{
	int fd = open(path, O_WRONLY | flags, 0644);

	printf("%s\n", fd < 0 ? strerror(errno) : "done");
	if (fd >= 0)
		close(fd);
}

int main(int argc, char **argv)
{
	FILE *in = argc > 1 ? fopen(argv[1], "r") : NULL;
	int out = argc > 2 ? open(argv[2], O_RDWR | O_CREAT, 0644) : -1;
	char line[4096], text[4096];
	struct stat st;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (in)
		setvbuf(in, NULL, _IONBF, 0);
	if (argc > 1 && (!in || (argc > 2 && out < 0)))
		return 3;
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		char *word = strtok(line, " \n"), *rest = strtok(NULL, "\n");

		if (!strcmp(word, "answer"))
			printf("%d\n", answer());
		else if (!strcmp(word, "next"))
			printf("%s", in && fgets(text, sizeof(text), in) ? text : "none\n");
		else if (!strcmp(word, "write"))
			printf("%zd\n", write(out, rest, strlen(rest)));
		else if (!strcmp(word, "show"))
			show(rest);
		else if (!strcmp(word, "link"))
			show_link(rest);
		else if (!strcmp(word, "put"))
			put(rest, O_TRUNC);
		else if (!strcmp(word, "make"))
			put(rest, O_CREAT | O_EXCL);
		else if (!strcmp(word, "remove"))
			printf("%s\n", unlink(rest) < 0 ? strerror(errno) : "done");
		else if (!strcmp(word, "size"))
			printf("%lld\n", stat(rest, &st) < 0 ? -1LL : (long long)st.st_size);
		else if (!strcmp(word, "cwd"))
			printf("%s\n", getcwd(text, sizeof(text)) ? text : strerror(errno));
		else if (!strcmp(word, "run"))
			printf("%d\n", system(rest));
	}
	return 0;
}

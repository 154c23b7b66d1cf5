/* A library of which two builds differ: what moves takes its own with it. */
#ifndef ANSWER
#define ANSWER 42
#endif
#define TABLE 65536

int answer(void);
/* On pages that nobody touches before the program has moved. */
static const volatile int far[TABLE] = {[TABLE - 1] = ANSWER};

int answer(void)
{
	return far[TABLE - 1];
}

/* A library with two different builds: a program that moves takes its own with it. */
#ifndef ANSWER
#define ANSWER 42
#endif
#define TABLE 65536

int answer(void);
/* On pages that the program does not touch before it has moved. */
static const volatile int far[TABLE] = {[TABLE - 1] = ANSWER};

int answer(void)
{
	return far[TABLE - 1];
}

/* The archive of jansson names `stdin` by a distance that only holds inside one library; it asks no more of
 * it than whether a file is that one. The agent reads no standard input, so it has one of its own, unseen. */
extern void *rp__no_standard_input __asm__("stdin") __attribute__((visibility("hidden")));
void *rp__no_standard_input;

/** @file samples.h
 * Functions of the small modules that the interposer is tested on.
 */
#ifndef RP_TEST_INTERPOSE_SAMPLES_H
#define RP_TEST_INTERPOSE_SAMPLES_H

#define SAMPLE_EXPORT __attribute__((visibility("default")))

SAMPLE_EXPORT int sample_add(int a, int b);
SAMPLE_EXPORT int sample_untouched(int a);
SAMPLE_EXPORT int sample_twice(int a);
SAMPLE_EXPORT int caller_add(int a, int b);
SAMPLE_EXPORT int caller_twice(int a);
SAMPLE_EXPORT int caller_untouched(int a);

#endif

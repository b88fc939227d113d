#include "cuda.h"

#include <stdarg.h>
#include <stdio.h>

int fail(struct failure *failure, const char *name, const char *format, ...)
{
    snprintf(failure->name, sizeof failure->name, "%s", name);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure->text, sizeof failure->text, format, arguments);
    va_end(arguments);
    return -1;
}

void warn(struct warnings *warnings, const char *format, ...)
{
    if (warnings->count == MAX_WARNINGS)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(warnings->items[warnings->count++], sizeof warnings->items[0], format, arguments);
    va_end(arguments);
}

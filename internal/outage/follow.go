package outage

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Resource is what a typed client of client-go lists and watches its objects with.
type Resource[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// Follow is the list and the watch of a resource for a reflector or an informer. During an
// outage they wait, where the reflector itself would back off to a minute, and cannot be told
// not to. Told is as with [Wait].
func Follow[L runtime.Object](resource Resource[L], fieldSelector string, told func(error)) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (list runtime.Object, err error) {
			options.FieldSelector = fieldSelector
			err = Wait(ctx, func(ctx context.Context) error {
				l, err := resource.List(ctx, options)
				list = l
				return err
			}, told)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (w watch.Interface, err error) {
			options.FieldSelector = fieldSelector
			err = Wait(ctx, func(ctx context.Context) error {
				w, err = resource.Watch(ctx, options)
				return err
			}, told)
			return w, err
		},
	}
}

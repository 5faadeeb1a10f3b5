package outage

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Resource is the part of a typed client that lists and watches objects.
type Resource[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// Follow returns the list and watch functions of a resource, for a reflector or an informer. They wait during an outage. The
// reflector itself would back off for up to a minute, which cannot be configured. Follow passes told to [Wait]. client is the
// clientset of the resource. Follow uses it to detect client-go's fake clientset, which cannot stream a list.
func Follow[L runtime.Object](client any, resource Resource[L], fieldSelector string, told func(error)) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
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
	}, client)
}
